"""Jobs of a workload that start only after other jobs have finished successfully."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from kant.model.event import Event, JobCancelled, JobFailed, JobFinished, JobRejected, JobSubmitted
from kant.sim.execution import Execution
from kant.workload.workload import Workload


class DependentArrivals:
    """Stands between the arrivals of a run and its jobs, and watches how each job ends.

    A job arrives as soon as its submit time has come and all jobs it depends on have finished successfully. If one of
    these can no longer finish, the job arrives and is withdrawn at once, so that it is counted.
    """

    def __init__(self, workload: Workload, execution: Execution) -> None:
        self.execution = execution
        self._waits: dict[str, set[str]] = {}  # for each job: its dependencies that have not ended yet
        self._followers: dict[str, list[str]] = {}
        for row, other in workload.after.tolist():
            name, before = workload.ids[row], workload.ids[other]
            self._waits.setdefault(name, set()).add(before)
            self._followers.setdefault(before, []).append(name)
        self._held: dict[str, JobSubmitted] = {}  # jobs that only wait for their dependencies
        self._doomed: set[str] = set()
        self._over: deque[tuple[str, bool]] = deque()
        self._apply: Callable[[Event], None] = execution.happen
        execution.happen = self._intercept

    def _intercept(self, event: Event) -> None:
        """Apply an event; the end of a job that others depend on is kept for `release`."""
        self._apply(event)
        if isinstance(event, JobFinished | JobRejected | JobCancelled | JobFailed) and event.job in self._followers:
            state = self.execution.state
            if not isinstance(event, JobFailed) or state.rows[event.job] not in state.live:
                self._over.append((event.job, isinstance(event, JobFinished)))

    def arrive(self, event: JobSubmitted) -> None:
        """Take a submission whose time has come: submit the job, hold it, or withdraw it."""
        if event.job.id in self._doomed:
            self._withdraw(event, event.time)
        elif self._waits.get(event.job.id):
            self._held[event.job.id] = event
        else:
            self.execution.arrive(event)

    def release(self, now: int) -> bool:
        """Submit, or withdraw, the held jobs affected by the ends so far; return whether any job arrived."""
        came = False
        while self._over:
            name, well = self._over.popleft()
            for follower in self._followers.pop(name, ()):
                waits = self._waits[follower]
                waits.discard(name)
                if not well:
                    self._doomed.add(follower)
                if follower in self._held and (not well or not waits):
                    came = True
                    event = self._held.pop(follower)
                    if well:
                        self.execution.arrive(_at(event, now))
                    else:
                        self._withdraw(event, now)
        return came

    def give_up(self, now: int) -> None:
        """End the run: jobs still held arrive, and count as waiting."""
        for event in self._held.values():
            self.execution.arrive(_at(event, now))
        self._held.clear()

    def _withdraw(self, event: JobSubmitted, now: int) -> None:
        self.execution.happen(_at(event, now))
        self.execution.happen(JobCancelled(now, event.job.id))


def _at(event: JobSubmitted, now: int) -> JobSubmitted:
    return JobSubmitted(now, replace(event.job, submit=now), event.runtime, event.overhead)
