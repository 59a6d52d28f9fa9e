"""Requeue: when a job that returned to the queue may be tried again."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated

from msgspec import Meta, Struct

from kant.cluster.columns import J_RETURNS, J_SINCE
from kant.cluster.state import ClusterState
from kant.model.decision import BackOff, RetriesUsed
from kant.model.units import SECOND

DOUBLINGS = 30


class Requeue(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that failed, timed out, was refused or lost its nodes returns to its place in the queue, after a back-off.

    The back-off is `base_s` the first time, doubles with each consecutive return, and is at most `max_s`. A job stopped
    by the scheduler has none, and its count restarts. A job that failed more often than its retries leaves.

    A gang that has lost a node has the first claim on its remaining devices for `in_place_s` (-1: none): if another
    node can replace the lost one, it restarts without a back-off. With `avoid_bad_nodes` a job is not placed on nodes
    on which it has failed while others suffice.
    """

    base_s: Annotated[int, Meta(ge=0, le=10**9)] = 0
    max_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600
    in_place_s: Annotated[int, Meta(ge=-1, le=10**9)] = 60
    avoid_bad_nodes: bool = True

    def back_off(self, state: ClusterState, row: int) -> BackOff | None:
        """Return until when a waiting job is not tried; None if it has no back-off."""
        returns = int(state.jobs[row, J_RETURNS])
        if returns == 0 or self.base_s == 0:
            return None
        wait = min(self.base_s << min(returns - 1, DOUBLINGS), max(self.max_s, self.base_s))
        return BackOff(returns, int(state.jobs[row, J_SINCE]) + wait * SECOND)


def retries_used(state: ClusterState, row: int, failures: int) -> RetriesUsed | None:
    """Return why a job that has failed `failures` times may not be tried again; None if it may."""
    return RetriesUsed(failures) if failures > state.live[row].retries else None


class BackOffs:
    """The waiting jobs in back-off, by its end."""

    def __init__(self, state: ClusterState, requeue: Requeue) -> None:
        self.state = state
        self.requeue = requeue
        self.ends: list[tuple[int, int]] = []
        """A heap of (end of the back-off, row). Entries of jobs that no longer wait are dropped when popped."""
        self._end: dict[int, int] = {}  # the end of the current back-off of each row

    def waits(self, row: int, now: int) -> bool:
        """Return whether a job is in back-off at `now`; if so, its end is recorded."""
        back_off = self.requeue.back_off(self.state, row)
        if back_off is None or back_off.until <= now:
            return False
        if self._end.get(row) != back_off.until:
            self._end[row] = back_off.until
            heappush(self.ends, (back_off.until, row))
        return True

    def over(self, now: int) -> list[int]:
        """Return the rows whose back-off has ended by `now`, each once."""
        rows = []
        while self.ends and self.ends[0][0] <= now:
            until, row = heappop(self.ends)
            if self._counts(until, row):
                del self._end[row]
                rows.append(row)
        return rows

    def forget(self, row: int) -> None:
        """Drop the back-off of a job on which the plan has decided."""
        self._end.pop(row, None)

    def next_end(self) -> int:
        """Return when the next back-off ends, µs; -1 if no job is in back-off."""
        while self.ends and not self._counts(*self.ends[0]):
            heappop(self.ends)
        return self.ends[0][0] if self.ends else -1

    def _counts(self, until: int, row: int) -> bool:
        """Return whether the back-off of a row ends at `until`."""
        if row not in self.state.pending:
            self._end.pop(row, None)
        return self._end.get(row) == until
