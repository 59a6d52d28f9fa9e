"""The running jobs that may be evicted, counted by priority."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, Table, longer
from kant.compiled import compiled
from kant.model.units import FOREVER


class PreemptibleCounts:
    """How many of the running jobs are preemptible, by priority."""

    __slots__ = ("table",)

    def __init__(self, jobs: Table, running: Iterable[int]) -> None:
        self.table: Table = np.zeros((8, 2), dtype=np.int64)
        """A priority and its number of jobs in each row, in no order; rows with the number 0 are free."""
        rows = np.fromiter(running, dtype=np.int64)
        preemptible = rows[jobs[rows, J_PREEMPTIBLE] != 0]
        for priority, number in zip(*np.unique(jobs[preemptible, J_PRIORITY], return_counts=True), strict=True):
            self.add(int(priority), int(number))

    def starts(self, jobs: Table, row: int) -> None:
        """Count a job that starts, if it is preemptible."""
        if jobs.item(row, J_PREEMPTIBLE) and not count(self.table, jobs.item(row, J_PRIORITY), 1):
            self.add(jobs.item(row, J_PRIORITY), 1)

    def stops(self, jobs: Table, row: int) -> None:
        """Stop counting a job that stops, if it is preemptible."""
        if jobs.item(row, J_PREEMPTIBLE):
            count(self.table, jobs.item(row, J_PRIORITY), -1)

    def add(self, priority: int, number: int) -> None:
        """Add `number` preemptible jobs of this priority; a negative `number` removes jobs."""
        while not count(self.table, priority, number):
            self.table = longer(self.table)

    def reserve(self, priorities: int) -> None:
        """Grow the table for this many more priorities."""
        if np.count_nonzero(self.table[:, 1]) + priorities > len(self.table):
            self.table = longer(self.table, len(self.table) + priorities)

    @property
    def counts(self) -> dict[int, int]:
        return {priority: count for priority, count in self.table.tolist() if count}


@compiled
def count(counts: Table, priority: int, number: int) -> bool:
    """Add `number` jobs of this priority (below 0: remove jobs). Returns False if a new priority needs more room."""
    free = -1
    for i in range(counts.shape[0]):
        if counts[i, 1] == 0:
            free = i
        elif counts[i, 0] == priority:
            counts[i, 1] += number
            return True
    if free >= 0:
        counts[free, 0], counts[free, 1] = priority, number
    return free >= 0


@compiled
def lowest(counts: Table) -> int:
    """Return the lowest priority among the counted jobs; FOREVER if there are none.

    Only a job of a higher priority than this can evict a counted job by priority.
    """
    found = FOREVER
    for i in range(counts.shape[0]):
        if counts[i, 1] > 0:
            found = min(found, counts[i, 0])
    return int(found)
