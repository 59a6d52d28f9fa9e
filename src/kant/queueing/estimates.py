"""Estimates: the run time that is planned for a job."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.cluster.columns import J_LIMIT, J_P50, J_P90, J_SINCE, J_STARTED, expected_end, planned_run
from kant.cluster.state import ClusterState
from kant.model.placement import Booking
from kant.model.units import FOREVER, MINUTE


class Estimates(Struct, frozen=True, forbid_unknown_fields=True):
    """How the planned run time of a job is chosen.

    `source`: `given` (declared by its owner, such as a limit), or `learned` from jobs that have finished, and given if
    nothing has been learned. `probability`: a learned run time is not exceeded with this probability, in percent (50 or
    90); so a backfilled job delays a reservation with at most the complementary probability.
    """

    source: Literal["given", "learned"] = "given"
    probability: Literal[50, 90] = 90

    @property
    def learns(self) -> bool:
        return self.source == "learned"

    def duration(self, state: ClusterState, row: int, pods: int = 0) -> int:
        """Return the planned run time of a job from its start on, at most its time limit, µs; FOREVER if unknown.

        An elastic gang is planned with `pods` pods; 0: with the pods that it holds, or with its floor if it waits.
        """
        job = state.jobs[row]
        if not (state.elastic and row in state.elastic):
            return planned_run(job, self.promised)
        work = self._work_of_elastic(state, row, pods)
        return work if job[J_LIMIT] < 0 else min(work, max(job.item(J_LIMIT), 1))

    @property
    def promised(self) -> int:
        """The column of the job table with the learned run times; -1 if they are not used."""
        return -1 if not self.learns else J_P50 if self.probability == 50 else J_P90

    def _work_of_elastic(self, state: ClusterState, row: int, pods: int) -> int:
        """Return how long an elastic gang would run with `pods` pods if it had no time limit."""
        progress, promised = state.elastic[row], int(state.jobs[row, self.promised]) if self.learns else -1
        pods, left = pods or progress.pods, progress.left
        if promised >= 0:
            left = max(promised - progress.time_at_ceiling(), MINUTE) * progress.ceiling
        return min(max(-(-left // pods), 1), FOREVER) if left >= 0 else FOREVER

    def end_if_started(self, state: ClusterState, row: int, start: int, pods: int = 0) -> int:
        """Return when a waiting job is expected to end if it starts at `start`, µs; FOREVER if unknown.

        A job on booked GPUs ends with the booking. `pods` is as for `duration`.
        """
        end = min(start + self.duration(state, row, pods), FOREVER)
        booking = _own_booking(state, row)
        return end if booking is None or booking.end <= start else min(end, booking.end)

    def end(self, state: ClusterState, row: int, now: int, pods: int = 0) -> int:
        """Return when a running job is expected to end, later than `now`, µs; FOREVER if unknown.

        An elastic gang runs from `now` on with `pods` pods; 0: with the pods that it holds. The job ends at its time
        limit and with the booking whose GPUs it uses. If it outlives its planned run time, its limit or its booking,
        that time is doubled until it is not exceeded.
        """
        job, elastic = state.jobs[row], state.elastic.get(row)
        span = planned_run(job, self.promised) if elastic is None else self._work_of_elastic(state, row, 0)
        end = expected_end(job.item(J_SINCE), span, now) if span < FOREVER else FOREVER
        if elastic is not None and pods and end < FOREVER:
            end = min(now + -(-(end - now) * elastic.pods // pods), FOREVER)
        started, booking = job.item(J_STARTED), _own_booking(state, row)
        if job[J_LIMIT] >= 0:
            end = min(end, expected_end(started, max(job.item(J_LIMIT), 1), now))
        if booking is not None:
            end = min(end, expected_end(started, max(booking.end - started, 1), now))
        return end


def _own_booking(state: ClusterState, row: int) -> Booking | None:
    """Return the booking whose GPUs a job uses; None if it names none, or one that is not there."""
    return state.bookings.get(state.shape_of(row).ask.reservation) if state.bookings else None
