"""Machine code cached on disk: one file for each kernel and set of dependencies.

Numba's own cache checks the file of the compiled kernel, but not the functions that it calls, and keeps an index that
two processes may write at once. Here the file name is a hash of everything: the byte code of the kernel and of every
function it can reach, the constants they use, the types of the arguments, Numba's version and the CPU. An edit
recompiles only what depends on it, and a file is written whole and never changed. So clones and versions of Kant share
equal kernels. If several processes need a kernel at the same time, one compiles it.

A file also names the kernels that its code calls; they are loaded first.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from kant.compiled import borrowed, whole
from kant.compiled.compiler import KernelCompiler
from kant.compiled.folders import folders
from kant.compiled.turn import Turn
from kant.compiled.unit import UnitLibrary, entry_of
from kant.compiled.work import work

KEPT = 512
"""The most files per kernel name; the last used are kept. Each policy and version of Kant may have its own file."""

FORMAT = 4
"""The format of a file: a change makes older files unknown."""

CPU_S_PER_BYTE = 5e-5
"""CPU seconds of compilation for each byte of a kernel's dependencies, as text."""

_CONSTANTS = (bool, int, float, str, bytes, tuple, type(None))
_FOREIGN = ("numba.", "numpy.", "builtins.", "math.", "_heapq.")
"""Functions of these modules are identified by name: their machine code depends on Numba's version alone."""


_units: dict[str, CompileResult] = {}
"""The kernels of this process by the names of their files."""

_files: dict[str, str] = {}
"""The names of the files by symbol; empty for a kernel that is not kept, and for kernels that call it."""


class KeptCode(NullCache):  # type: ignore[misc]
    """The cache of a kernel: Numba reads it before it compiles, and saves its result there."""

    def __init__(self, kernel: Callable[..., object]) -> None:
        self._kernel = kernel
        self._turn: Turn | None = None
        _kept_of[kernel] = self

    @cached_property
    def _depends_on(self) -> bytes | None:
        try:
            parts = list(_reached(self._kernel))
        except _UnknownError:
            return None
        code = borrowed.MACHINE_CODE, whole.MACHINE_CODE
        compiler = [FORMAT, sys.version_info[:2], numba.__version__, int(numba.config.OPT), *code]
        text = repr([*compiler, parts]).encode()
        self._length = len(text)
        return hashlib.blake2b(text).digest()

    @property
    def compile_s(self) -> float:
        """Estimated CPU seconds to compile the kernel with everything that it calls."""
        return CPU_S_PER_BYTE * self._length if self._depends_on is not None else 0.0

    def is_there(self, types: Iterable[Any], context: Any) -> bool:
        """Return whether the kernel is cached for arguments of these types."""
        name = self._name(tuple(types), context)
        return name is not None and (name in _units or any((folder / name).exists() for folder in folders()))

    def digest(self, types: tuple[Any, ...], context: Any) -> str | None:
        """Return a digest of the kernel's dependencies for arguments of these types; None if these are unknown."""
        if self._depends_on is None:
            return None
        digest = hashlib.blake2b(self._depends_on, digest_size=16)
        digest.update(repr([*map(_described, types)]).encode())
        digest.update(repr(context.codegen().magic_tuple()).encode())
        return digest.hexdigest()

    def _name(self, signature: Any, context: Any) -> str | None:
        digest = self.digest(tuple(getattr(signature, "args", signature)), context)
        return f"{self._stem}-{digest}.code" if digest else None

    @property
    def _stem(self) -> str:
        return f"{self._kernel.__module__}.{self._kernel.__name__}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the cached kernel; None if there is none: then this process must compile it."""
        context.refresh()
        kept = self._find(self._name(signature, context), context)
        if kept is None:
            work.compiled += 1
        else:
            work.found += 1
        return kept

    def entry(self, kernel: CompileResult) -> Any:
        """Return what Python calls for a compiled `kernel`; it is cached as kernels are."""
        name = self._name(kernel.signature, kernel.target_context)
        name = name and f"{name.removesuffix('.code')}.entry.code"
        kept = self._find(name, kernel.target_context)
        if kept is None:
            kept = entry_of(kernel)
            self._save(name, kept)
        return kept.entry_point

    def _find(self, name: str | None, context: Any) -> CompileResult | None:
        if name is None:
            return None
        kept = _load(name, context)
        if kept is None:
            self._turn = _turn_for(name)
            kept = _load(name, context)  # another process may have compiled it meanwhile
        return kept

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save a compiled kernel in the first writable folder."""
        _files[result.fndesc.mangled_name] = self._save(self._name(signature, result.target_context), result) or ""

    def _save(self, name: str | None, result: CompileResult) -> str | None:
        """Save compiled code in the first writable folder. Returns the file's name; None if code cannot be kept."""
        module = result.library._final_module
        calls = {function.name for function in module.functions if function.is_declaration} & _files.keys()
        needs = {symbol: _files[symbol] for symbol in calls}
        if result.library.has_dynamic_globals or not all(needs.values()):
            name = None
        if name is not None:
            _units[name] = result._replace(metadata=None)  # otherwise Numba would write it twice
            # Its annotated source serves only to debug Numba, and contains addresses of this process.
            data = dumps((needs, result._replace(type_annotation="")._reduce()))
            for folder in folders():
                try:
                    self._write(folder, name, data)
                except OSError:
                    continue
                break
        self.end_turn()
        return name

    def _write(self, folder: Path, name: str, data: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, part = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            Path(part).replace(folder / name)
        finally:
            Path(part).unlink(missing_ok=True)  # there if the disk is full
        files = sorted(folder.glob(f"{self._stem}-*.code"), key=lambda file: file.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)

    def end_turn(self) -> None:
        """Let processes that wait for this kernel continue: it is saved, or could not be compiled."""
        if self._turn is not None:
            self._turn.end()
            self._turn = None


_kept_of: WeakKeyDictionary[Callable[..., object], KeptCode] = WeakKeyDictionary()
"""The caches of kernels by their functions."""


class UnitCompiler(KernelCompiler):
    """Numba's usual pipeline, except that it emits a unit, under a symbol that is the same in every process."""

    library_class = UnitLibrary

    def _compile_bytecode(self) -> Any:
        state = self.state
        digest = _kept_of[state.func_id.func].digest(state.args, state.targetctx)
        if digest is not None:
            state.func_id.unique_id = digest
        return super()._compile_bytecode()


def _load(name: str, context: Any) -> CompileResult | None:
    """Return a kernel with all that it calls; None if one of them is not kept."""
    if name not in _units:
        needs, code = _read(name) or ({}, None)
        for symbol, needed in needs.items():
            found = _load(needed, context)
            if found is None or found.fndesc.mangled_name != symbol:
                return None
        if code is None:
            return None
        fndesc = code[1]
        is_entry = fndesc.mangled_name in needs
        symbol = fndesc.llvm_cpython_wrapper_name if is_entry else fndesc.mangled_name
        context.codegen()._engine._defined_symbols.add(symbol)
        _units[name] = CompileResult._rebuild(context, *code)
        if not is_entry:
            _files[symbol] = name
    return _units[name]


def _read(name: str) -> Any:
    for folder in folders():
        file = folder / name
        try:
            kept = pickle.loads(file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            continue
        with suppress(OSError):
            os.utime(file)
        return kept
    return None


def _described(kind: Any) -> str:
    """Return a type with the names of its fields, and of those of the named tuples in it."""
    return f"{kind} {getattr(kind, 'fields', '')} {[*map(_described, getattr(kind, 'types', ()))]}"


def _turn_for(name: str) -> Turn | None:
    """Wait for the lock to compile a kernel, and return it; None if no folder is writable."""
    for folder in folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Turn(folder / f"{name}.turn")
    return None


class _UnknownError(Exception):
    """A function depends on a value whose changes cannot be detected."""


def _reached(kernel: Callable[..., object]) -> Iterator[object]:
    """Yield the dependencies of the machine code of `kernel`, in the same order in every process."""
    seen: set[int] = set()
    rest: list[object] = [kernel]
    while rest:
        part = rest.pop()
        if hasattr(part, "py_func"):  # a unit, and not inlined
            part = part.py_func
            yield "unit"
        if isinstance(part, _CONSTANTS):
            yield part
        elif isinstance(part, np.ndarray):
            yield str(part.dtype), part.shape, part.tobytes()
        elif isinstance(part, type) and issubclass(part, tuple) and hasattr(part, "_fields"):
            yield part.__qualname__, part._fields
            rest += getattr(part, "_field_defaults", {}).values()
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
            yield part.__module__, part.__qualname__  # the name for the linker, and for code that loads it
            yield from _code(code)
            rest += [part.__defaults__, *(cell.cell_contents for cell in part.__closure__ or ())]
            rest += _globals(code, part.__globals__)


def _code(code: CodeType) -> Iterator[object]:
    """Yield a function's byte code and constants, without line numbers."""
    yield code.co_name, code.co_code, code.co_names, code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield constant


def _globals(code: CodeType, known: dict[str, Any]) -> Iterator[object]:
    """Yield the values of the global names that a function uses; for a module, the attributes that it uses."""
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
