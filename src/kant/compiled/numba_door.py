"""Kernels that Numba compiles; `kant.compiled` says how."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
from numba.core.registry import cpu_target

from kant.compiled.compiler import KernelCompiler
from kant.compiled.inner import InnerCompiler, InnerType
from kant.compiled.kept import KeptCode

F = TypeVar("F", bound=Callable[..., object])

numba.config.LOOP_VECTORIZE = 0

_inner: list[object] = []
"""Dispatchers of inlined functions: Numba's types have only weak references to them."""


def compiled(function: F) -> F:
    """Compile `function` on its first call for the types it is called with, and keep the result on disk."""
    kernel = numba.njit(no_cfunc_wrapper=True, pipeline_class=KernelCompiler)(function)
    if kernel is not function:
        kernel._cache = KeptCode(function)
    return cast(F, kernel)


def inlined(function: F) -> F:
    """Let kernels call `function`; called from Python it stays plain Python.

    A kernel made by a factory may close over such a function and still be found again on disk, because a plain
    function has a stable name where a compiled one has not.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
    dispatcher = numba.njit(**options)(function)
    if dispatcher is not function:
        _inner.append(dispatcher)
        cpu_target.typing_context.insert_global(function, InnerType(dispatcher))
    return function
