"""One measured figure, and the CPU time that measures it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit`; `ratio` says how many times better than the rival it is (None: it has none)."""

    name: str
    value: float
    unit: str
    ratio: float | None
    rival: str
    bound_by: str


def cpu_seconds(work: Callable[[], T], repeat: int = 1) -> tuple[float, T]:
    """The least CPU time of `repeat` runs, and the last result."""
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        began = time.process_time()
        result = work()
        best = min(best, time.process_time() - began)
    return best, result
