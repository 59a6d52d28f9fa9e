"""A new policy as a small package: a class, its conformance test, a profile, and a few jobs to try it on."""

from __future__ import annotations

import shlex
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from kant.cli.inputs import check_out
from kant.model.errors import DISTRIBUTION, InputError
from kant.scheduler.registry import TAG, is_offered

USUAL = {"order": "fifo", "discipline": "best-effort", "placement": "best-fit"}
"""For each kind of policy, the one used in the profile of a new policy of another kind."""

LONGEST = 40
"""The maximum number of characters of a name."""


def write_package(name: str, kind: str, folder: Path) -> list[Path]:
    """Write the package and return its files. Raises InputError for a name in use or a folder that exists."""
    if not TAG.fullmatch(name) or len(name) > LONGEST:
        raise InputError("name", f"words of lower-case letters and digits, joined by hyphens, at most {LONGEST}", name)
    if is_offered(kind, name) or f"kant-{name}" == DISTRIBUTION:
        raise InputError("name", f"a name that no other {kind} has (see `kant policies`)", name)
    if folder.exists():
        raise InputError(f"--out {folder}", "a folder that does not exist yet")
    check_out(folder)
    texts = package_files(name, kind)
    folder.mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def package_files(name: str, kind: str) -> dict[str, str]:
    """Return the files of the package, by name."""
    module = "kant_" + name.replace("-", "_")
    words = {
        "distribution": DISTRIBUTION,
        "tag": name, "kind": kind, "module": module, "title": name.replace("-", " ").capitalize(),
        "cls": "".join(word.capitalize() for word in name.split("-")),
        **{part: f'policy = "{policy}"' for part, policy in USUAL.items()},
        kind: f'policy = "{name}"\npackage = "kant-{name}"',
    }  # fmt: skip
    templates = {
        f"{module}.py": kind, f"test_{module}.py": "test", f"{name}.toml": "profile", "pyproject.toml": "pyproject"
    }  # fmt: skip
    here = resources.files("kant.cli.new_policy")
    texts = {file: Template(_read(here, f"{part}.txt")).substitute(words) for file, part in templates.items()}
    return texts | {"jobs.csv": _read(here, "jobs.csv")}


def _read(folder: Traversable, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def next_commands(name: str, folder: Path) -> list[str]:
    """Return the next commands: install the package, run its tests, compare the policy."""
    inside = [shlex.quote(str(folder / part)) for part in ("jobs.csv", f"{name}.toml", "run")]
    root = folder if folder.is_absolute() else f"./{folder}"
    return [
        f"pip install --editable {shlex.quote(f'{root}[test]')}",
        f"python -m pytest {shlex.quote(str(folder))}",
        f"kant compare {inside[0]} --cluster 2x4 --profile fifo --profile {inside[1]} --out {inside[2]}",
    ]
