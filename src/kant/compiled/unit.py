"""How a kernel is compiled: once, as a unit of its own that other kernels call.

By default Numba copies a kernel into every kernel that calls it, and optimises and compiles it there again. A unit is
called by its symbol instead, so its symbol is the same in every process.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary

from kant.compiled.compiler import KernelCompiler
from kant.compiled.kept import kept_of


class UnitLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Machine code whose callers are linked to it, and get no copy."""

    def _get_module_for_linking(self) -> Any:
        self._ensure_finalized()
        return JITCodeLibrary(self._codegen, self.name)._final_module  # empty


class UnitCompiler(KernelCompiler):
    """Numba's usual pipeline, but it emits into a `UnitLibrary`, under a symbol that tells what it depends on."""

    library_class = UnitLibrary

    def _compile_bytecode(self) -> Any:
        state = self.state
        digest = kept_of[state.func_id.func].digest(state.args, state.targetctx)
        if digest is not None:
            state.func_id.unique_id = digest
        return super()._compile_bytecode()
