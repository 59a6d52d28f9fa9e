"""How an inlined function is compiled: once, and only as far as its calling kernels need.

By default Numba compiles every function that a kernel calls to machine code, and then optimises it once more in each
caller, level by level. An inlined function never runs alone, so it stays as Numba has lowered it.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.typed_passes import NopythonTypeInference
from numba.core.types import Dispatcher, unliteral
from numba.extending import models, register_model

from kant.compiled.compiler import KernelCompiler


class InnerType(Dispatcher):  # type: ignore[misc]
    """The type of an inlined function in a kernel. It treats literal integer arguments as plain integers."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        return super().get_call_type(context, [unliteral(arg) for arg in args], kws)


register_model(InnerType)(models.OpaqueModel)


class _NoEnvironment:
    @staticmethod
    def set_env(name: str, env: object) -> None:
        """Do nothing: a function that is never called from Python needs no environment."""


class InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code that is linked into kernels, and neither optimised nor compiled to machine code on its own."""

    codegen = _NoEnvironment()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


@register_pass(mutates_CFG=False, analysis_only=True)
class IntoInnerLibrary(FunctionPass):  # type: ignore[misc]
    """The compiler pass that sets the library into which code is emitted."""

    _name = "into_inner_library"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return False


class InnerCompiler(KernelCompiler):
    """Numba's usual pipeline, but it emits into an `InnerLibrary`."""

    def define_pipelines(self) -> list[Any]:
        (steps,) = super().define_pipelines()
        steps.add_pass_after(IntoInnerLibrary, NopythonTypeInference)
        steps.finalize()
        return [steps]
