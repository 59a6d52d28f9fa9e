"""The digest of the deciding code: results are only comparable between runs of the same code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

from msgspec import Struct

import kant

ROOMS = ("model", "cluster", "compiled", "placement", "queueing", "scheduler", "reproduce", "insight", "metrics",
         "workload", "optimize", "sim")  # fmt: skip
"""The subpackages of Kant that run in a simulation or compute its summary."""


def code_digest(*policies: Any) -> str:
    """Return a digest, 32 hexadecimal digits, of Kant's files that affect decisions and of the packages of `policies`.

    A policy defined in a notebook or a script has no file of its own; the byte code of its methods counts instead.
    """
    kinds = {kind for policy in policies for kind in _kinds(policy)}
    seen = hashlib.blake2b(_kant().encode(), digest_size=16)
    for name in sorted({_top(kind) for kind in kinds} - {"kant"}):
        seen.update(_package(name).encode())
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        if _top(kind) == "__main__":
            seen.update("\0".join(_methods(kind)).encode())
    return seen.hexdigest()


def _kinds(policy: Any) -> Iterator[type]:
    """The classes of a policy and of the policies that it is composed of."""
    yield type(policy)
    for name in getattr(policy, "__struct_fields__", ()):
        value = getattr(policy, name)
        if isinstance(value, Struct):
            yield from _kinds(value)


def _top(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _methods(kind: type) -> Iterator[str]:
    """The methods and the constants of a class as texts, in order of their names."""
    for name, value in sorted(vars(kind).items()):
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        code = getattr(getattr(function, "py_func", function), "__code__", None)
        if code is not None:
            yield name
            yield from _code(code)
        elif not name.startswith("_") and isinstance(value, int | float | str | tuple | dict):
            yield f"{name} {value!r}"


def _code(code: CodeType) -> Iterator[str]:
    """Yield the byte code, the names and the constants of a function, without its line numbers."""
    yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


@cache
def _kant() -> str:
    root = Path(kant.__file__).parent
    files = [path for room in ROOMS for path in sorted((root / room).rglob("*")) if path.suffix in (".py", ".toml")]
    return _files(kant.__version__, root, files)


@cache
def _package(name: str) -> str:
    """Return the digest of the files of a package or module; without files, of its name and version."""
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
