"""Carrying out a plan: each decision as events for the state at once, and as work for the launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.live.sentences import said
from kant.local.endings import over_limit
from kant.local.record import Phase, Record
from kant.model.decision import (
    Demote,
    Expire,
    Hold,
    Plan,
    Preempt,
    Reject,
    Release,
    Reorder,
    Reserve,
    Start,
)
from kant.model.event import (
    JobDemoted,
    JobFailed,
    JobPreempted,
    JobRejected,
    JobReleased,
    JobReserved,
    JobStarted,
    QueueOrdered,
)

if TYPE_CHECKING:
    from kant.local.driver import Driver


class Carrier:
    """Takes plans apart for one driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def carry(self, plan: Plan) -> None:
        """Say what the plan decides as events, in its order."""
        driver, core = self.driver, self.driver.core
        for decision in plan.decisions:
            if isinstance(decision, Reorder):
                core.happen(QueueOrdered(core.now, decision.jobs))
                continue
            record = driver.by_core[decision.job]
            match decision:
                case Start(allocation=place):
                    core.happen(JobStarted(core.now, decision.job, place))
                    driver.notes.pop(record.id, None)
                    driver.launcher.plan(record, place.tolist())
                case Preempt(by=by, why=why):
                    core.happen(JobPreempted(core.now, decision.job, by=by))
                    if driver.telemetry is not None:
                        driver.telemetry.evicted(why)
                    winner = driver.by_core.get(by)
                    self._stop(record, f"{why}, for job {winner.id}" if winner is not None else why)
                case Expire():
                    self._expire(record, decision.job)
                case Reserve(start=start, end=end, allocation=place):
                    core.happen(JobReserved(core.now, decision.job, start, end, place))
                case Release():
                    core.happen(JobReleased(core.now, decision.job))
                case Reject(reason=reason):
                    core.happen(JobRejected(core.now, decision.job, said(reason)))
                    driver.leave(record)
                    driver.finish(record, Phase.REJECTED, said(reason))
                case Hold(reason=reason):
                    driver.notes[record.id] = said(reason)
                case Demote(level=level):
                    core.happen(JobDemoted(core.now, decision.job, level))

    def _expire(self, record: Record, job: str) -> None:
        """A job that has reached its limit fails; it waits again if its retries allow."""
        driver, core = self.driver, self.driver.core
        record.failures += 1
        core.happen(JobFailed(core.now, job, "limit"))
        if record.failures > record.submission.retries:
            core.happen(JobRejected(core.now, job, over_limit(record)))
            driver.leave(record)
        self._stop(record, "limit")
        if record.phase is Phase.WAITING and record.id not in driver.core_id:
            driver.finish(record, Phase.FAILED, over_limit(record))

    def _stop(self, record: Record, why: str) -> None:
        """A run makes way. One that has not begun only loses its place."""
        launcher = self.driver.launcher
        if launcher.unbegin(record):
            record.phase, record.started, record.place = Phase.WAITING, -1, []
            self.driver.touch(record)
            return
        if launcher.unplan(record):
            return
        record.phase, record.stopping = Phase.STOPPING, why
        launcher.to_stop.append(record)
        self.driver.touch(record)
