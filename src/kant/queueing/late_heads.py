"""Late heads that cannot be served: the result for a head is cached until it may have changed."""

from __future__ import annotations

from typing import NamedTuple

from kant.cluster.columns import (
    J_FIRST_START,
    J_PREEMPTIBLE,
    J_PRIORITY,
    J_QUEUE,
    J_SINCE,
    J_STARTED,
    J_STATUS,
    J_SUBMIT,
)
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.status import JobStatus
from kant.queueing.room_given import room_given

RUNNING = JobStatus.RUNNING.value

OTHERWISE = 1 << 50
"""More room than jobs can give: the cached result no longer holds."""


class Unserved(NamedTuple):
    """The result for a late head: at least `missing` pods lack room, even without the jobs that it may preempt.

    `unreclaimable`: even without all backfilled jobs. Otherwise some of these are protected by their minimum run time:
    row `first` until `until` (µs), the others for longer. `allowed`: the jobs that it might preempt, if quotas decide
    that; else None. With it, `missing` is 0 once the head may fit without those jobs; then only one fact still holds:
    it would fit without all backfilled jobs. The other fields say for which wait, nodes, changes and cycle (µs) the
    result was found.
    """

    missing: int
    unreclaimable: bool
    until: int
    first: int
    since: int
    node_version: int
    end: int
    allowed: frozenset[int] | None = None
    asked: int = -1


class LateHeads:
    """The late heads of a state that could not be served. Forgetting one only costs time.

    A job that starts takes room. A job that stops gives room to a bounded number of pods: as many as its nodes hold. So
    a result holds until the jobs that have stopped since may give the missing room, until the next job reaches its
    minimum run time, or until a node changes. If quotas decide which jobs a head may preempt, it may preempt no further
    ones until a job of its own queue stops: a job that starts in quota does not borrow later.
    """

    def __init__(self, state: ClusterState, outgrown: bool = False) -> None:
        self.state = state
        self.outgrown = outgrown
        self._known: dict[int, Unserved] = {}

    def add(
        self,
        row: int,
        missing: int,
        unreclaimable: bool,
        until: int = -1,
        first: int = -1,
        allowed: frozenset[int] | None = None,
        asked: int = -1,
    ) -> None:
        """Cache that a head of one group lacks room for `missing` pods."""
        state = self.state
        if len(self._known) > 2 * len(state.pending):
            self._known = {row: known for row, known in self._known.items() if row in state.pending}
        since = int(state.jobs[row, J_SINCE])
        self._known[row] = Unserved(
            missing, unreclaimable, until, first, since, state.node_version, state.job_changes.end,
            allowed, asked,
        )  # fmt: skip

    def forget(self, row: int) -> None:
        """Drop the cached result for a job."""
        self._known.pop(row, None)

    def known(self, row: int, shape: Shape, now: int) -> Unserved | None:
        """Return the result for a head that still holds at `now`; None if the search must be repeated."""
        known, state = self._known.pop(row, None), self.state
        if known is None or 0 <= known.until <= now:
            return None
        if known.node_version != state.node_version or known.since != state.jobs.item(row, J_SINCE):
            return None
        if known.end != state.job_changes.end:
            room = self._room_given(row, shape, known, state.job_changes.since(known.end))
            if room >= (known.missing if known.allowed is None else OTHERWISE):
                return None
            _, unreclaimable, until, first, since, version, _, allowed, asked = known
            missing = known.missing - room if known.missing > room else 0
            known = Unserved(
                missing, unreclaimable, until, first, since, version, state.job_changes.end, allowed, asked
            )
        self._known[row] = known
        return known

    def is_unreclaimable(self, row: int, shape: Shape, now: int) -> bool:
        """Return whether the head is known not to fit even without all backfilled jobs."""
        known = self.known(row, shape, now)
        return known is not None and known.unreclaimable

    def _room_given(self, row: int, shape: Shape, known: Unserved, moved: list[int]) -> int:
        """Return an upper bound on the pods of the head for which the jobs that have changed gave room."""
        jobs, gone, least = self.state.jobs, [], 0
        priority, queue, allowed = jobs.item(row, J_PRIORITY), jobs.item(row, J_QUEUE), known.allowed
        if not known.unreclaimable and known.first in moved:
            if allowed is None:
                return OTHERWISE  # another job is the next unprotected one
            least = known.missing
        for other in moved:
            job = jobs[other].tolist()
            if job[J_STARTED] < 0:
                continue
            behind = job[J_SUBMIT] > known.since and job[J_PRIORITY] <= priority and job[J_PREEMPTIBLE]
            if known.unreclaimable:
                if self.outgrown:
                    if job[J_STATUS] == JobStatus.RUNNING:
                        return OTHERWISE  # not known yet when it falls behind the head
                    gone.append(other)  # perhaps already counted as free: then the search repeats too early
                    continue
                if behind:
                    continue  # what it held was counted as free
            elif job[J_STATUS] == JobStatus.RUNNING:
                if not behind:
                    return OTHERWISE  # room that could be preempted is less
                if allowed is None or other in allowed or known.asked != job[J_STARTED] == job[J_FIRST_START]:
                    continue  # it took free room, or a place that others gave up or had taken before
            elif allowed is not None and job[J_QUEUE] == queue:
                least = known.missing  # the head may now preempt more
                continue
            elif allowed is not None and other in allowed:
                continue  # what it held was counted as free
            gone.append(other)
        return max(least, room_given(self.state, shape, gone) if gone else 0)
