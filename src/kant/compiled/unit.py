"""A unit of compilation: a kernel, and the entry by which Python calls it.

By default Numba copies a kernel into every kernel that calls it, and optimises and compiles it there again. A unit is
called by its symbol instead.

An entry turns Python's objects into the arguments of a kernel. For many arrays its code is as long as the kernel's, and
most kernels are called only by kernels. So the entry is separate, and compiled only when Python first calls it.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.lowering import Environment
from numba.core.runtime import rtsys

from kant.compiled.compiler import KernelLibrary


class UnitLibrary(KernelLibrary):
    """Machine code that callers are linked to, without copying it."""

    def _get_module_for_linking(self) -> Any:
        self._ensure_finalized()
        return JITCodeLibrary(self._codegen, self.name)._final_module  # empty


@global_compiler_lock  # type: ignore[untyped-decorator]
def entry_of(kernel: CompileResult) -> CompileResult:
    """Compile the entry of `kernel`."""
    # The entry of a kernel from the cache would return arrays without their references.
    context, called = kernel.target_context.subtarget(enable_nrt=True), copy(kernel.fndesc)
    called.env_name += ".entry"  # a process that reads the kernel alone has no constants of the entry
    constants = Environment.from_fndesc(called)
    library = UnitLibrary(context.codegen(), f"{kernel.library.name}.entry")
    library.enable_object_caching()
    with context.push_code_library(library):
        context.create_cpython_wrapper(library, called, constants, None)
    library.add_linking_library(rtsys.library)
    function = context.get_executable(library, called, constants)
    return kernel._replace(library=library, environment=constants, fndesc=called, entry_point=function, reload_init=())
