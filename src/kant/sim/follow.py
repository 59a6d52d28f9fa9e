"""Follow a journal: apply its events as the original run did, including the true run times of its jobs.

The state follows from the events alone. The times at which running jobs end do not follow: the speed (sim/speed.py)
determines them, and so it receives the same calls in the same order as in the original run.
"""

from __future__ import annotations

from kant.cluster import columns as c
from kant.model.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobGrown,
    JobPreempted,
    JobProgressed,
    JobRefused,
    JobShrunk,
    JobStarted,
    JobSubmitted,
)
from kant.model.units import GPU
from kant.sim.execution import Execution

_STOPS = (JobPreempted, JobEvicted, JobFailed, JobRefused, JobGrown, JobShrunk)


class Follower:
    """Applies events to an execution without making decisions.

    The speed knows only the jobs whose run time the journal states: those of a simulated run.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self._known: set[int] = set()  # rows of live jobs that the speed knows
        self._reported = 0

    def follow(self, event: Event) -> None:
        """Apply one event. Raises StateError if it contradicts the state."""
        execution, speed, state = self.execution, self.execution.speed, self.execution.state
        if isinstance(event, JobProgressed | JobStarted) and event.time > self._reported:
            self._reported = event.time
            speed.progress(event.time)
        row = -1 if isinstance(event, JobSubmitted) else state.rows.get(getattr(event, "job", ""), -1)
        known = row in self._known and row in state.running
        if known and isinstance(event, _STOPS):
            gpus = -(-int(state.jobs[row, c.J_MILLI]) // GPU)
            speed.stopped(row, gpus, event.time, isinstance(event, JobGrown))
        elif known and isinstance(event, JobFinished | JobCancelled):
            speed.dropped(row)
        execution.happen(event)
        if isinstance(event, JobSubmitted) and event.runtime >= 0:
            row = len(state.ids) - 1
            self._known.add(row)
            execution.admit(row, event.runtime, event.overhead)
        elif isinstance(event, JobStarted | JobGrown | JobShrunk) and row in self._known:
            execution.run(row, event.time)
        elif row not in state.live:
            self._known.discard(row)

    def settle(self, left: dict[str, int], now: int) -> None:
        """Register the other live jobs with the speed, each with its remaining work `left` at `now`."""
        execution, state = self.execution, self.execution.state
        for row, job in state.live.items():
            if row not in self._known:
                execution.admit(row, left[job.id], 0)
                if row in state.running:
                    execution.run(row, now)
