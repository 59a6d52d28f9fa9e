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
from kant.compiled.kept import KeptCode, UnitCompiler
from kant.compiled.work import work

F = TypeVar("F", bound=Callable[..., object])

numba.config.LOOP_VECTORIZE = 0
numba.config.OPT = _OptLevel(1)

PATIENCE = 0.2
"""A kernel runs as plain Python until that has taken this fraction of the time to compile it."""

CALL_S = 2e-5
"""The approximate CPU seconds that each call takes to find that a kernel has no machine code yet."""

_inner: list[object] = []
"""Keeps the dispatchers of functions that kernels call alive: Numba's types hold only weak references to them."""


_plain: set[int] = set()
"""The ids of threads that do not compile."""

_ahead: set[int] = set()
"""The ids of threads that compile each kernel at its first call."""


def compiled(function: F) -> F:
    """Compile `function` for each set of argument types, and cache the result on disk.

    A kernel that is not cached first runs as plain Python, until that has taken a fraction (PATIENCE) of its compile
    time, so no run waits for code that it hardly uses. One call as plain Python should take less than a second.
    """
    return _kernel(function, at_once=False)


def compiled_at_once(function: F) -> F:
    """Compile as `compiled` does, but at the first call: for a kernel whose calls take long."""
    return _kernel(function, at_once=True)


def _kernel(function: F, at_once: bool) -> F:
    kernel = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=UnitCompiler)(function)
    if kernel is function:
        return function
    kernel._cache = kept = KeptCode(function)
    compile_for, template, plain_s = kernel._compile_for_args, kernel.get_call_template, [0.0]

    def code_for(*args: Any) -> Any:
        thread = get_ident()
        if thread in _plain:
            return function
        began = time.thread_time()
        try:
            tries = not at_once and thread not in _ahead and plain_s[0] < PATIENCE * kept.compile_s
            if tries and (plain_s[0] > 0.0 or not kept.is_there(map(kernel.typeof_pyval, args), kernel.targetctx)):
                return once_plain
            called = compile_for(*args)
            unit = next(unit for unit in kernel.overloads.values() if unit.entry_point is called)
            entry = kept.entry(unit)
            kernel._insert([arg._code for arg in unit.signature.args], entry)
            return entry
        finally:
            kept.end_turn()
            work.cpu_s += time.thread_time() - began

    def once_plain(*args: Any) -> Any:
        began = time.thread_time()
        try:
            with as_written():
                return function(*args)
        finally:
            took = time.thread_time() - began
            plain_s[0] += took + CALL_S
            work.cpu_s += took

    kernel._compile_for_args = code_for  # called by Numba if it has no code for the types of a call
    kernel.add_overload = lambda unit: kernel.overloads.update({tuple(unit.signature.args): unit})
    # A kernel that calls this kernel with a constant needs no separate machine code.
    kernel.get_call_template = lambda args, kws: template([unliteral(arg) for arg in args], kws)
    return cast(F, kernel)


def is_ready(kernel: Any, *args: object) -> bool:
    """Return whether a kernel can be called without an additional compilation: it is cached, this process has called
    it, or this thread compiles no kernels (`as_written`) or all of them (`compiling_ahead`).
    """
    kept: KeptCode = kernel._cache
    known = bool({get_ident()} & (_plain | _ahead)) or len(kernel.overloads) > 0
    return known or kept.is_there(map(kernel.typeof_pyval, args), kernel.targetctx)


@contextmanager
def as_written() -> Iterator[None]:
    """Run kernels without machine code as plain Python in this thread, while another thread compiles them."""
    with _marked(_plain):
        yield


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Compile each kernel at its first call in this thread, since later code must not wait or is measured."""
    with _marked(_ahead):
        yield


@contextmanager
def _marked(threads: set[int]) -> Iterator[None]:
    thread = get_ident()
    inside = thread in threads
    threads.add(thread)
    try:
        yield
    finally:
        if not inside:
            threads.discard(thread)


def inlined(function: F) -> F:
    """Let kernels call `function`; called from Python it stays plain Python.

    A kernel made by a factory may close over such a function and is still found on disk, because a plain function has a
    stable name, and a compiled one does not.
    """
    return _inner_function(function, forced=False)


def shared(function: F) -> F:
    """Let kernels call `function`, as `inlined` does, but compile it once and not again as a part of each kernel."""
    return _called_by_kernels(function, _kernel(function, at_once=False))


def merged(function: F) -> F:
    """Copy `function` into each kernel that calls it, so that code which a constant argument rules out is removed."""
    return _inner_function(function, forced=True)


def _inner_function(function: F, forced: bool) -> F:
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
    return _called_by_kernels(function, numba.njit(**options, forceinline=forced)(function))


def _called_by_kernels(function: F, dispatcher: object) -> F:
    if dispatcher is not function:
        _inner.append(dispatcher)
        cpu_target.typing_context.insert_global(function, InnerType(dispatcher))
    return function
