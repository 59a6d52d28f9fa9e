"""The cost of loading and compiling kernels in this process, so that a run can report its time without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """Kernels read from their cache, kernels compiled, and the CPU seconds of both."""

    found: int = 0
    compiled: int = 0
    cpu_s: float = 0.0


work = Work()
