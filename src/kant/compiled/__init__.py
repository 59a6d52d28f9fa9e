"""The one door to Numba: `@compiled` for a kernel, `@inlined` for a function that kernels call.

A kernel is a plain Python function over arrays. With `NUMBA_DISABLE_JIT=1` it runs as written, and so serves as
the oracle that the compiled one is tested against; Numba, which takes half a second to load, is not loaded then.

Five things keep the first run short. Numba looks up the type of each kind of call once (`compiler.py`). LLVM optimises
an inlined function only as a part of the kernels that call it (`inner.py`). It does not vectorise loops: most of them
run over the eight devices of a node, and half of its time would go there. It optimises once (`-O1`): more of that takes
a fifth longer, and makes most kernels no faster. And machine code is kept on disk, named by all that it depends
on (`kept.py`). `kant profiles compile` and `make setup` put it there before the first run.

Who cannot wait has another thread compile, and meanwhile runs the kernels as they are written (`as_written`).
"""

from __future__ import annotations

import os

from kant.compiled.work import work

if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    from kant.compiled.plain import as_written, compiled, inlined
else:
    from kant.compiled.numba_door import as_written, compiled, inlined

__all__ = ["as_written", "compiled", "inlined", "work"]
