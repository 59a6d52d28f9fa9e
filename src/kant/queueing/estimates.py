"""Estimates: the run time that is planned for a job."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.cluster.columns import J_P50, J_P90, J_SINCE, expected_end, planned_run
from kant.cluster.state import ClusterState
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
        """Return the planned run time of the job from its start on, microseconds; FOREVER if unknown.

        An elastic gang is planned with `pods` pods; 0: with the pods that it holds, or with its floor if it waits.
        """
        if state.elastic and row in state.elastic:
            return self._of_elastic(state, row, pods)
        return planned_run(state.jobs[row], self.promised)

    @property
    def promised(self) -> int:
        """The column of the job table with the learned run times; -1 if they are not used."""
        return -1 if not self.learns else J_P50 if self.probability == 50 else J_P90

    def _of_elastic(self, state: ClusterState, row: int, pods: int) -> int:
        progress, promised = state.elastic[row], int(state.jobs[row, self.promised]) if self.learns else -1
        pods, left = pods or progress.pods, progress.left
        if promised >= 0:
            left = max(promised - progress.time_at_ceiling(), MINUTE) * progress.ceiling
        return min(max(-(-left // pods), 1), FOREVER) if left >= 0 else FOREVER

    def end(self, state: ClusterState, row: int, now: int) -> int:
        """Return when a running job is expected to end, later than `now`; FOREVER if unknown.

        A job that outlives its estimate is expected to run twice as long, and this doubles each time it is exceeded.
        """
        span = self.duration(state, row)
        if span >= FOREVER:
            return FOREVER
        return expected_end(state.jobs.item(row, J_SINCE), span, now)
