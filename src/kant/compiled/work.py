"""What kernels have cost this process so far, so that a run can say what it took without them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """Kernels read from their cache, kernels compiled, and the CPU seconds of both."""

    found: int = 0
    compiled: int = 0
    cpu_s: float = 0.0


work = Work()
