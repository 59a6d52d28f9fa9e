"""Kernels that Numba compiles, as `kant.compiled` describes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar, cast

import numba
from numba.core.config import _OptLevel
from numba.core.registry import cpu_target
from numba.core.types import unliteral

from kant.compiled.inner import InnerCompiler, InnerType
from kant.compiled.kept import KeptCode
from kant.compiled.unit import UnitCompiler
from kant.compiled.work import work

F = TypeVar("F", bound=Callable[..., object])

numba.config.LOOP_VECTORIZE = 0
numba.config.OPT = _OptLevel(1)

_inner: list[object] = []
"""Keeps the dispatchers of inlined functions alive: Numba's types hold only weak references to them."""


_waits_for_none: set[int] = set()
"""The ids of threads that do not compile, because another thread does."""


def compiled(function: F) -> F:
    """Compile `function` at its first call with each set of argument types, and cache the result on disk."""
    kernel = numba.njit(no_cfunc_wrapper=True, pipeline_class=UnitCompiler)(function)
    if kernel is function:
        return function
    kernel._cache = kept = KeptCode(function)
    compile_for, template = kernel._compile_for_args, kernel.get_call_template

    def code_for(*args: Any) -> Any:
        if get_ident() in _waits_for_none:
            return function
        began = time.process_time()
        try:
            return compile_for(*args)
        finally:
            kept.end_turn()
            work.cpu_s += time.process_time() - began

    kernel._compile_for_args = code_for  # what Numba calls without code for the types of a call
    # A kernel that calls it with a constant needs no code of its own for that.
    kernel.get_call_template = lambda args, kws: template([unliteral(arg) for arg in args], kws)
    return cast(F, kernel)


@contextmanager
def as_written() -> Iterator[None]:
    """Run kernels without machine code as plain Python in this thread, while another thread compiles them."""
    thread = get_ident()
    _waits_for_none.add(thread)
    try:
        yield
    finally:
        _waits_for_none.discard(thread)


def inlined(function: F) -> F:
    """Let kernels call `function`; called from Python it stays plain Python.

    A kernel made by a factory may close over such a function and is still found on disk, because a plain function has a
    stable name, and a compiled one does not.
    """
    return _inner_function(function, forced=False)


def merged(function: F) -> F:
    """Copy `function` into each kernel that calls it, whatever its size: what a constant argument excludes is gone."""
    return _inner_function(function, forced=True)


def _inner_function(function: F, forced: bool) -> F:
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
    dispatcher = numba.njit(**options, forceinline=forced)(function)
    if dispatcher is not function:
        _inner.append(dispatcher)
        cpu_target.typing_context.insert_global(function, InnerType(dispatcher))
    return function
