"""Numba's compiler with three changes: it infers each type once, runs without garbage collection, and emits into
the library of a subclass.

To type `a + b` Numba tries some twenty definitions of `+`, twice for every `+`. Kernels consist of integers and tables
of them: of 20 calls of Numba's own functions, 19 equal an earlier call.

Compiling creates millions of objects that live until its end. The collector would visit them repeatedly.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.typed_passes import NativeLowering
from numba.core.types.functions import BaseFunction

from kant.compiled.borrowed import BorrowingLowering

_signatures: dict[Any, Any] = {}
"""Signatures of Numba's functions, by the function and the types of its arguments."""

_get_call_type = BaseFunction.get_call_type


class KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Numba's library of LLVM code. It drops parsed instructions, since the garbage collector would visit each."""

    def add_ir_module(self, module: Any) -> None:
        super().add_ir_module(module)
        for function in module.functions:
            for block in function.blocks:
                block.instructions.clear()
                block.terminator = None
            function.args = ()
            function.blocks.clear()


class KernelCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's usual pipeline, with the changes of this module."""

    library_class = KernelLibrary

    def compile_extra(self, func: Any) -> Any:
        with _remembered_types(), _no_collection():
            result = super().compile_extra(func)
            result.fndesc.typemap = result.fndesc.calltypes = None
            return result._replace(type_annotation=None)

    def _compile_bytecode(self) -> Any:
        state = self.state
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super()._compile_bytecode()

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.add_pass_after(BorrowingLowering, NativeLowering)
        steps.passes = [step for step in steps.passes if step[0] is not NativeLowering]
        steps.finalize()
        return [steps]


@contextmanager
def _remembered_types() -> Iterator[None]:
    """Cache inferred signatures. Numba compiles one function at a time, so no other compilation is affected."""
    before = BaseFunction.get_call_type
    BaseFunction.get_call_type = _remembered
    try:
        yield
    finally:
        BaseFunction.get_call_type = before


def _remembered(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a call. Results are cached, errors are not."""
    if kws:
        return _get_call_type(function, context, args, kws)
    call = (function, *args)
    found = _signatures.get(call)
    if found is None:
        found = _signatures[call] = _get_call_type(function, context, args, kws)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
