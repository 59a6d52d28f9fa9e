"""Requeue: when a job that came back may be tried again."""

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
    """A job that failed, timed out, was refused or lost its nodes goes back to its place in the queue, but waits first.

    `base_s` the first time in a row, twice as long each further time, `max_s` at most. A job that the scheduler has
    stopped waits for nothing, and its count begins anew. A job that failed more often than its retries leaves.

    A gang that has lost a node has the first claim on the rest of its devices for `in_place_s` (-1: none): if another
    node can take the place of the lost one, it waits for nothing. With `avoid_bad_nodes` a job is not placed on nodes
    on which it has failed as long as others suffice.
    """

    base_s: Annotated[int, Meta(ge=0, le=10**9)] = 0
    max_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600
    in_place_s: Annotated[int, Meta(ge=-1, le=10**9)] = 60
    avoid_bad_nodes: bool = True

    def back_off(self, state: ClusterState, row: int) -> BackOff | None:
        """Until when a waiting job is not tried; None where it may be tried at any time."""
        returns = int(state.jobs[row, J_RETURNS])
        if returns == 0 or self.base_s == 0:
            return None
        wait = min(self.base_s << min(returns - 1, DOUBLINGS), max(self.max_s, self.base_s))
        return BackOff(returns, int(state.jobs[row, J_SINCE]) + wait * SECOND)


def retries_used(state: ClusterState, row: int, failures: int) -> RetriesUsed | None:
    """Why a job that has failed `failures` times may not be tried again; None where it may."""
    return RetriesUsed(failures) if failures > state.live[row].retries else None


class BackOffs:
    """The waiting jobs that are not tried yet, by the end of their back-off."""

    def __init__(self, state: ClusterState, requeue: Requeue) -> None:
        self.state = state
        self.requeue = requeue
        self.ends: list[tuple[int, int]] = []
        """A heap of (end of the back-off, row). Entries of jobs that no longer wait are dropped as they come up."""
        self._end: dict[int, int] = {}  # of each row, the end that counts

    def waits(self, row: int, now: int) -> bool:
        """Whether a job backs off at `now`; it is remembered until then."""
        back_off = self.requeue.back_off(self.state, row)
        if back_off is None or back_off.until <= now:
            return False
        if self._end.get(row) != back_off.until:
            self._end[row] = back_off.until
            heappush(self.ends, (back_off.until, row))
        return True

    def over(self, now: int) -> list[int]:
        """The rows whose back-off has ended by `now`, each once."""
        rows = []
        while self.ends and self.ends[0][0] <= now:
            until, row = heappop(self.ends)
            if self._counts(until, row):
                del self._end[row]
                rows.append(row)
        return rows

    def forget(self, row: int) -> None:
        """The plan has decided on a job that backs off: nobody waits for that any more."""
        self._end.pop(row, None)

    def next_end(self) -> int:
        """When the next back-off ends, µs; -1 where no job backs off."""
        while self.ends and not self._counts(*self.ends[0]):
            heappop(self.ends)
        return self.ends[0][0] if self.ends else -1

    def _counts(self, until: int, row: int) -> bool:
        """Whether the back-off of a row ends at `until`."""
        if row not in self.state.pending:
            self._end.pop(row, None)
        return self._end.get(row) == until
