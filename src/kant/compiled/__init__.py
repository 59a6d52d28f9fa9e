"""The only module through which Kant uses Numba: `@compiled` for a kernel, `@inlined` for a function that kernels call.

A kernel is a Python function over arrays, compiled for the CPU. With `NUMBA_DISABLE_JIT=1` it runs as plain Python, as
the reference for tests of the compiled code; Numba, which takes half a second to load, is then not loaded.

Seven measures keep the first run short. Numba infers the type of each kind of call once (`compiler.py`). A kernel that
others call is compiled once, and not again as a part of each of them (`unit.py`). LLVM optimises an inlined function
only as a part of the kernels that call it (`inner.py`), and a function that many kernels call is a kernel, too
(`shared`). LLVM does not vectorise loops: most of them run over the eight devices of a node, and vectorising would
double the compile time. It optimises at `-O1`: a higher level takes a fifth longer, and makes most kernels no faster.
Machine code is cached on disk, named by everything that it depends on (`kept.py`). `kant profiles compile` and `make
setup` fill this cache before the first run.

A caller that cannot wait lets another thread compile, and meanwhile runs the kernels as plain Python (`as_written`).
"""

from __future__ import annotations

import os

from kant.compiled.work import work

if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    from kant.compiled.plain import as_written, compiled, compiled_at_once, compiling_ahead, inlined, is_ready, merged

    shared = inlined
else:
    from kant.compiled.numba_kernels import as_written, compiled, compiled_at_once, compiling_ahead, inlined, is_ready
    from kant.compiled.numba_kernels import merged as merged
    from kant.compiled.numba_kernels import shared as shared

__all__ = [
    "as_written", "compiled", "compiled_at_once", "compiling_ahead", "inlined", "is_ready", "merged", "shared", "work",
]  # fmt: skip
