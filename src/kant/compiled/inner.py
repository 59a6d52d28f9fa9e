"""How an inlined function is compiled: once, and only as far as its calling kernels need it.

By default Numba compiles every function that a kernel calls to machine code, and then optimises it once more in each
caller, level by level. An inlined function never runs alone, so it stays as Numba has lowered it.
"""

from __future__ import annotations

from typing import Any

from numba.core.types import Dispatcher, unliteral
from numba.extending import models, register_model

from kant.compiled.compiler import KernelCompiler, KernelLibrary


class InnerType(Dispatcher):  # type: ignore[misc]
    """The type of an inlined function in a kernel. It treats literal integer arguments as plain integers."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        return super().get_call_type(context, [unliteral(arg) for arg in args], kws)


register_model(InnerType)(models.OpaqueModel)


class _NoEnvironment:
    @staticmethod
    def set_env(name: str, env: object) -> None:
        """Do nothing: a function that is never called from Python needs no environment."""


class InnerLibrary(KernelLibrary):
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


class InnerCompiler(KernelCompiler):
    """Numba's usual pipeline, but it emits into an `InnerLibrary`."""

    library_class = InnerLibrary
