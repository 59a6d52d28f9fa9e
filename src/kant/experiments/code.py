"""The digest of the code that decides: results of other code are not those of this one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

import kant

ROOMS = ("model", "cluster", "compiled", "placement", "queueing", "scheduler", "reproduce", "insight", "metrics",
         "workload", "optimize", "sim")  # fmt: skip
"""What runs under a simulation, and what its summary is made by."""


def code_digest(*policies: Any) -> str:
    """32 hexadecimal digits of the Python files of Kant that decide, and of the packages that `policies` come from."""
    others = sorted({name for policy in policies for name in _packages(policy)} - {"kant"})
    seen = hashlib.blake2b(_kant().encode(), digest_size=16)
    for name in others:
        seen.update(_package(name).encode())
    return seen.hexdigest()


def _packages(policy: Any) -> Iterator[str]:
    """The top packages of a policy and of the policies that it is made of."""
    yield type(policy).__module__.partition(".")[0]
    for name in getattr(policy, "__struct_fields__", ()):
        value = getattr(policy, name)
        if isinstance(value, Struct):
            yield from _packages(value)


@cache
def _kant() -> str:
    root = Path(kant.__file__).parent
    files = [path for room in ROOMS for path in sorted((root / room).rglob("*")) if path.suffix in (".py", ".toml")]
    return _files(kant.__version__, root, files)


@cache
def _package(name: str) -> str:
    """Of the files of a package or module; of its name alone where it has none, as in a notebook."""
    spec = find_spec(name) if name != "__main__" else None
    if spec is None or spec.origin is None:
        version = str(getattr(import_module(name), "__version__", ""))
        return _files(f"{name} {version}", Path(), [])
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    return _files(name, origin.parent, files)


def _files(begin: str, root: Path, files: list[Path]) -> str:
    seen = hashlib.blake2b(begin.encode(), digest_size=16)
    for path in files:
        text = path.read_bytes()
        seen.update(f"\0{path.relative_to(root)}\0{len(text)}\0".encode())
        seen.update(text)
    return seen.hexdigest()
