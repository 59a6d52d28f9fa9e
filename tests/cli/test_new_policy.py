"""`kant policies new`: a package that works at once, and whose next commands do what they say."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
from tests.cli.command import kant
from tests.docs.pages import ROOT, blocks


def test_the_next_commands_are_those_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are run in a fresh environment, as they stand there: the page is one of those that tests/docs tries."""
    monkeypatch.chdir(tmp_path)
    printed = kant("policies", "new", "widest", "--kind", "order").out
    written, _, commands = printed.partition("next:\n")
    files = [tmp_path / line for line in written.split()]
    assert len(files) == 5 and all(file.is_file() for file in files)
    run = [
        block.text for block in blocks(ROOT / "docs" / "tutorial-policy.md") if block.kind == "sh" and not block.what
    ]
    assert dedent(commands) in run
    compare = shlex.split(commands.splitlines()[-1])[1:]
    assert "the package kant-widest, which offers it, to be installed" in kant(*compare).refusal()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["discipline", "placement"])
def test_a_package_of_another_kind_offers_its_policy_and_passes_its_tests(kind: str, tmp_path: Path) -> None:
    """Beside what an installation writes about it, as the printed command for an order is tried above."""
    folder = tmp_path / "kant-my-own"
    assert kant("policies", "new", "my-own", "--kind", kind, "--out", folder).code == 0
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    about = folder / "kant_my_own-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    offers = "".join(f"{name} = {where}\n" for name, where in project["entry-points"]["kant.policies"].items())
    (about / "entry_points.txt").write_text(f"[kant.policies]\n{offers}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", folder],
        cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1", "PYTEST_ADDOPTS": "",
                           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fifo"], "a name that no other order has"),
        (["best-fit", "--kind", "placement"], "a name that no other placement has"),
        (["scheduler"], "a name that no other order has"),  # its package would be called like Kant's own
        (["Fifo"], "words of lower-case letters and digits"),
        (["../up"], "words of lower-case letters and digits"),
        (["a" * 41], "at most 40"),
        (["mine", "--kind", "queue"], "--kind"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in kant("policies", "new", *arguments).refusal()
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kant("policies", "new", "mine").code == 0
    before = {file: file.read_text() for file in (tmp_path / "kant-mine").iterdir()}
    assert "a folder that does not exist" in kant("policies", "new", "mine", "--kind", "placement").refusal()
    assert {file: file.read_text() for file in (tmp_path / "kant-mine").iterdir()} == before
    assert "a folder that" in kant("policies", "new", "mine", "--out", "kant-mine/pyproject.toml/x").refusal()


def test_a_folder_with_a_space_is_quoted_in_the_next_commands(tmp_path: Path) -> None:
    folder = tmp_path / "my own"
    out = kant("policies", "new", "mine", "--out", folder).out
    install, test, compare = out.partition("next:\n")[2].splitlines()
    assert shlex.split(install)[-1] == f"{folder}[test]" and shlex.split(test)[-1] == str(folder)
    assert f"{folder}/mine.toml" in shlex.split(compare)
