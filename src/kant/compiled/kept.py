"""Machine code kept on disk: one file for each kernel and what its code depends on.

Numba's own cache looks at the file of the kernel it compiles, not at the functions that it calls, and keeps an index
that two processes may write at once. Here the name of a file says all: the byte code of the kernel and of every
function it can reach, the constants they use, the types of the arguments, Numba's version and the CPU. An edit
compiles anew what depends on it and nothing else, and a file is never changed, only written whole.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

NEWEST = 32
"""Files that are kept for kernels of one name: a name has a kernel for each policy, and versions of Kant."""

_CONSTANTS = (bool, int, float, str, bytes, tuple, type(None))
_FOREIGN = ("numba.", "numpy.", "builtins.")
"""Functions of these are known by their names."""


class KeptCode(NullCache):  # type: ignore[misc]
    """What Numba asks before it compiles a kernel, and gives what it has compiled."""

    def __init__(self, kernel: Callable[..., object]) -> None:
        self._kernel = kernel

    @cached_property
    def _depends_on(self) -> bytes | None:
        try:
            parts = list(_reached(self._kernel))
        except _UnknownError:
            return None
        return hashlib.blake2b(repr([sys.version_info[:2], numba.__version__, parts]).encode()).digest()

    def _name(self, signature: Any, context: Any) -> str | None:
        if self._depends_on is None:
            return None
        types = tuple(getattr(signature, "args", signature))
        digest = hashlib.blake2b(self._depends_on, digest_size=16)
        digest.update(repr([str(arg) for arg in types]).encode())
        digest.update(repr(context.codegen().magic_tuple()).encode())
        return f"{self._stem}-{digest.hexdigest()}.code"

    @property
    def _stem(self) -> str:
        return f"{self._kernel.__module__}.{self._kernel.__name__}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled kernel, or None where there is none."""
        context.refresh()
        name = self._name(signature, context)
        for folder in _folders() if name else ():
            try:
                kept = pickle.loads((folder / str(name)).read_bytes())
            except (OSError, EOFError, pickle.UnpicklingError):
                continue
            return CompileResult._rebuild(context, *kept)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compiled kernel, in the first folder that takes it."""
        name = self._name(signature, result.target_context)
        if name is None or result.library.has_dynamic_globals:
            return
        # Its annotated source is for people who debug Numba, and has addresses of this process in it.
        data = dumps(result._replace(type_annotation="")._reduce())
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                    file.write(data)
                Path(file.name).replace(folder / name)
                self._prune(folder)
            except OSError:
                continue
            return

    def _prune(self, folder: Path) -> None:
        files = sorted(folder.glob(f"{self._stem}-*.code"), key=lambda file: file.stat().st_mtime)
        for file in files[:-NEWEST]:
            file.unlink(missing_ok=True)


def _folders() -> Iterator[Path]:
    """Where code is looked for, and kept where it can be written: the user's cache, else a folder for temporary files.

    What lies there is run, so a folder that somebody else made is not looked at.
    """
    given = os.environ.get("KANT_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    yield (Path(given) if given else Path.home() / ".cache") / "kant" / "kernels"
    own = Path(tempfile.gettempdir()) / f"kant-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        mine = own.stat().st_uid == os.getuid() and not own.is_symlink()
    except OSError:
        return
    if mine:
        yield own / "kernels"


class _UnknownError(Exception):
    """A function depends on something of which it cannot be told whether it has changed."""


def _reached(kernel: Callable[..., object]) -> Iterator[object]:
    """What machine code of `kernel` depends on, in an order that is the same in every process."""
    seen: set[int] = set()
    rest: list[object] = [kernel]
    while rest:
        part = rest.pop()
        part = getattr(part, "py_func", part)
        if isinstance(part, _CONSTANTS):
            yield part
        elif isinstance(part, np.ndarray):
            yield str(part.dtype), part.shape, part.tobytes()
        elif not isinstance(part, FunctionType):
            name = f"{getattr(part, '__module__', None)}.{getattr(part, '__qualname__', None)}"
            if not name.startswith(_FOREIGN):
                raise _UnknownError(name)
            yield name
        elif part.__module__.startswith(_FOREIGN):
            yield part.__module__, part.__qualname__
        elif id(part) not in seen:
            seen.add(id(part))
            code = part.__code__
            yield from _code(code)
            rest += [part.__defaults__, *(cell.cell_contents for cell in part.__closure__ or ())]
            rest += _globals(code, part.__globals__)


def _code(code: CodeType) -> Iterator[object]:
    """A function's text as the interpreter has it, without the lines where it stands."""
    yield code.co_name, code.co_code, code.co_names, code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield constant


def _globals(code: CodeType, known: dict[str, Any]) -> Iterator[object]:
    """The values of the names that a function uses; of a module, those that it has of them."""
    for name in code.co_names:
        value = known.get(name)
        if not isinstance(value, ModuleType):
            yield value
        elif not f"{value.__name__}.".startswith(_FOREIGN):
            found = (getattr(value, attribute, None) for attribute in code.co_names)
            yield from (attribute for attribute in found if not isinstance(attribute, ModuleType))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant, known)
