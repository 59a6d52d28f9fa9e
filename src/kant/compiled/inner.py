"""How an inlined function is compiled: once, and only as far as the kernels that call it need.

Numba by itself makes every function that a kernel calls a finished piece of machine code, and then optimises its text
once more in each caller, level by level. Nobody runs an inlined function alone, so it stays as Numba has lowered it.
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
    """The type of an inlined function in a kernel: a literal integer among its arguments is any integer."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        return super().get_call_type(context, [unliteral(arg) for arg in args], kws)


register_model(InnerType)(models.OpaqueModel)


class _NoEnvironment:
    @staticmethod
    def set_env(name: str, env: object) -> None:
        """A function that is never called from Python has nothing to ask its environment for."""


class InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code that is linked into kernels: neither optimised nor made machine code by itself."""

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
    """The step of a compilation that says where its code goes."""

    _name = "into_inner_library"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return False


class InnerCompiler(KernelCompiler):
    """Numba's usual steps, which end in an `InnerLibrary`."""

    def define_pipelines(self) -> list[Any]:
        (steps,) = super().define_pipelines()
        steps.add_pass_after(IntoInnerLibrary, NopythonTypeInference)
        steps.finalize()
        return [steps]
