"""The cycles that a journal omits because the version of Kant that wrote it did not record cycles without decisions.

Kant 0.2 and before left them out, so a replay has to find out when they ran. For a simulated run this is known: one
cycle at the end of each instant, one more at the same instant if a plan stopped a job for another or at its limit, and
one at the time for which the last plan asked. The cycles of a live driver are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from kant.cluster.journal import Header
from kant.model.decision import Expire, Plan, Preempt, Shrink
from kant.model.event import (
    Event,
    JobCancelled,
    JobDemoted,
    JobFailed,
    JobGrown,
    JobPreempted,
    JobProgressed,
    JobRejected,
    JobReleased,
    JobReserved,
    JobShrunk,
    JobStarted,
    PolicyRouted,
    QueueOrdered,
)

RECORDED_FROM = (0, 3)
"""The first version of Kant that records every cycle."""

CARRIED_OUT = (
    JobStarted, JobRejected, JobPreempted, JobShrunk, JobGrown, JobFailed, JobReserved, JobReleased, JobDemoted,
    PolicyRouted, QueueOrdered, JobProgressed, JobCancelled,
)  # fmt: skip
"""The events that carrying out a plan produces at its own instant."""


def is_recorded(header: Header) -> bool:
    """Return whether the journal has all cycles. A version that cannot be parsed counts as current."""
    try:
        major, minor = (int(part) for part in header.version.split(".")[:2])
    except ValueError:
        return True
    return (major, minor) >= RECORDED_FROM


class UnsaidCycles:
    """Finds, from one journal line to the next, when a simulated run cycled without a line. Times are microseconds."""

    def __init__(self) -> None:
        self._time = 0
        self._news = False  # an event has happened since the last cycle
        self._planned = False  # the last cycle was at `_time`, so the next lines may carry out its plan
        self._review_at = -1

    def before(self, line: Event | Plan) -> Iterator[int]:
        """Yield the times of the cycles between the last line and this one; call `decided` for each before the next."""
        if line.time > self._time and self._news:
            yield self._time
        while 0 <= self._review_at < line.time:
            yield self._review_at
        if line.time > self._time:
            self._time, self._planned = line.time, False
        if not isinstance(line, Plan) and not (self._planned and isinstance(line, CARRIED_OUT)):
            self._news = True

    def decided(self, plan: Plan) -> None:
        """Record the plan of a cycle, whether or not the journal has a line for it."""
        self._time, self._planned, self._review_at = plan.time, True, plan.review_at
        self._news = any(isinstance(each, Expire) or (isinstance(each, Preempt | Shrink) and each.by)
                         for each in plan.decisions)  # fmt: skip
