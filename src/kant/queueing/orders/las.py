"""Discretised two-dimensional LAS: least attained service first, in levels that keep jobs from thrashing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kant.cluster.columns import J_ATTAINED, J_LEVEL, J_MILLI, J_RANK, J_SINCE, J_STATUS, Table
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER, SECOND
from kant.queueing.order import Order

END_OF_LEVEL = 1 << 40
LEVEL = 1 << 44


class Las(Order, frozen=True, tag="las"):
    """Queues by attained GPU time (run time so far times GPUs), FIFO inside each; the lowest queue goes first.

    A running job whose GPU time reaches `thresholds_gpu_s[k]` moves from level k to the end of level k + 1. Within
    a level, jobs that run stay before jobs that wait. Needs no estimate of any run time.
    """

    thresholds_gpu_s: tuple[Annotated[int, Meta(gt=0, le=10**9)], ...] = (3250, 7200)

    source: ClassVar[str] = "Tiresias, Gu et al., NSDI 2019, section 3.2 (Tiresias-L)"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct", knowledge="none", resources="1-d")
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if list(self.thresholds_gpu_s) != sorted(set(self.thresholds_gpu_s)):
            raise ValueError("thresholds_gpu_s must rise")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        due = self._due(jobs, rows, now)
        rank = np.where(due, END_OF_LEVEL + rows, jobs[rows, J_RANK])
        keys: NDArray[Any] = (jobs[rows, J_LEVEL] + due) * LEVEL + rank
        return keys

    def demotions(self, jobs: Table, running: Table, now: int) -> Sequence[tuple[int, int]]:
        due = np.sort(running[self._due(jobs, running, now)])
        return [(int(row), int(jobs[row, J_LEVEL]) + 1) for row in due]

    def review_at(self, jobs: Table, running: Table, now: int) -> int:
        if len(running) == 0:
            return -1
        level = jobs[running, J_LEVEL] + self._due(jobs, running, now)
        # In whole seconds from the start of the service, as the published scheduler counts.
        need = -(-self._need(jobs, running, level) // SECOND) * SECOND
        left = np.where(need >= FOREVER, FOREVER, need - self._attained(jobs, running, now))
        soonest = int(left.min())
        return -1 if soonest >= FOREVER else now + max(soonest, 1)

    def _attained(self, jobs: Table, rows: Table, now: int) -> Table:
        running = jobs[rows, J_STATUS] == 1
        attained: Table = jobs[rows, J_ATTAINED] + np.where(running, now - jobs[rows, J_SINCE], 0)
        return attained

    def _need(self, jobs: Table, rows: Table, level: Table) -> Table:
        """Return the run time at which each job has used up `level`, µs; FOREVER in the last level."""
        limits = np.array([*self.thresholds_gpu_s, 0], dtype=np.int64) * (SECOND * 1000)
        milli = np.maximum(jobs[rows, J_MILLI], 1)
        last = level >= len(self.thresholds_gpu_s)
        return np.where(last, FOREVER, -(-limits[np.minimum(level, len(self.thresholds_gpu_s))] // milli))

    def _due(self, jobs: Table, rows: Table, now: int) -> NDArray[np.bool_]:
        running = jobs[rows, J_STATUS] == 1
        due: NDArray[np.bool_] = running & (
            self._attained(jobs, rows, now) >= self._need(jobs, rows, jobs[rows, J_LEVEL])
        )
        return due
