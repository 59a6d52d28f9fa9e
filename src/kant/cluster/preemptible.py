"""The running jobs that may be evicted, counted by priority."""

from __future__ import annotations

from collections.abc import Iterable

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, Table
from kant.model.units import FOREVER


class PreemptibleCounts:
    """How many of the running jobs are preemptible, by priority.

    `lowest` is the lowest of these priorities; FOREVER if no running job is preemptible. A job whose priority is not
    above it can evict no job by its priority.
    """

    __slots__ = ("counts", "lowest")

    def __init__(self, jobs: Table, running: Iterable[int]) -> None:
        self.counts: dict[int, int] = {}
        self.lowest = FOREVER
        for row in running:
            self.starts(jobs, row)

    def starts(self, jobs: Table, row: int) -> None:
        """Count a job that starts, if it is preemptible."""
        if jobs[row, J_PREEMPTIBLE]:
            self.add(int(jobs[row, J_PRIORITY]), 1)

    def stops(self, jobs: Table, row: int) -> None:
        """Remove a job that stops."""
        if jobs[row, J_PREEMPTIBLE]:
            self.add(int(jobs[row, J_PRIORITY]), -1)

    def add(self, priority: int, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) one job of this priority."""
        count = self.counts.get(priority, 0) + sign
        if count:
            self.counts[priority] = count
            self.lowest = min(self.lowest, priority)
        else:
            del self.counts[priority]
            self.lowest = min(self.counts, default=FOREVER)
