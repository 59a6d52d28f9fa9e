"""How runs end: by themselves, because they were stopped, or because they could not begin. What becomes of the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kant.live.logs import said
from kant.local.record import Phase, Record
from kant.local.runs import REBOOTED, Exit
from kant.local.wishes import most_memory
from kant.model.event import JobCancelled, JobEvicted, JobFailed, JobFinished, JobRefused, JobRejected
from kant.model.units import show_duration

if TYPE_CHECKING:
    from kant.local.driver import Driver

log = logging.getLogger("kant.local")
MOST_REFUSALS = 10
"""Times that a run of a job may be impossible to begin, before the job fails."""


class Endings:
    """Settles ended runs for one driver. The core may know a job no longer: then only its record changes."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.refusals: dict[str, int] = {}

    def settle(self, record: Record, exit: Exit) -> None:
        """A run has ended: by itself, or because it was stopped."""
        self.driver.launcher.gone(record)
        record.code, record.signal = exit.code, exit.signal
        record.ended = self.driver.clock.micros()
        stopping, record.stopping = record.stopping, ""
        if exit.unborn and not stopping and record.id in self.driver.core_id:
            self.not_begun(record, exit.lost)
        elif stopping == "cancelled":
            self.driver.finish(record, Phase.CANCELLED, "")
        elif stopping and not (exit.code == 0 and not exit.why):
            self._stopped(record, stopping)
        elif exit.code == 0 and exit.why not in ("limit", "memory"):
            self._finished(record)
        elif exit.lost == REBOOTED:
            self._again(record, exit.lost)
        else:
            self._failed(record, exit)

    def _stopped(self, record: Record, why: str) -> None:
        """A run that was to make way has gone. The core has let the job wait again, or given it back."""
        record.place = []
        if why == "limit" and record.failures > record.submission.retries:
            self.driver.finish(record, Phase.FAILED, over_limit(record))
        else:
            record.phase = Phase.WAITING
            record.reason = {"limit": over_limit(record)}.get(why, f"it was stopped: {why}")
            self.driver.touch(record)
            self.driver.block(record)

    def _finished(self, record: Record) -> None:
        """A run ended well: also one that was told to stop too late."""
        name = self.driver.core_id.get(record.id)
        if name is not None:
            state = self.driver.core.state
            runs = state.rows[name] in state.running and not self.driver.launcher.is_planned(record)
            self.driver.launcher.unplan(record)
            event = JobFinished if runs else JobCancelled
            self.driver.happen(event(self.driver.core.now, name))
            self.driver.leave(record)
        self.driver.finish(record, Phase.FINISHED, "")

    def _again(self, record: Record, reason: str) -> None:
        """A job lost its place through no fault of its own: it waits again."""
        name = self.driver.core_id.get(record.id)
        if name is not None and self.driver.core.state.rows[name] in self.driver.core.state.running:
            self.driver.happen(JobEvicted(self.driver.core.now, name, reason))
        record.phase, record.reason, record.place = Phase.WAITING, reason, []
        self.driver.touch(record)
        self.driver.block(record)

    def _failed(self, record: Record, exit: Exit) -> None:
        """A run ended otherwise than it should; another is tried if the job's retries allow."""
        if exit.lost:
            reason = exit.lost
        elif exit.why == "limit":
            reason = over_limit(record)
        elif exit.why == "memory":
            reason = over_memory(record)
        else:
            reason = f"exit code {exit.code}" if exit.code is not None else f"killed by signal {exit.signal}"
        record.failures += 1
        name = self.driver.core_id.get(record.id)
        if name is not None:
            self.driver.happen(JobFailed(self.driver.core.now, name, reason))
        if record.failures > record.submission.retries:
            if name is not None:
                self.driver.happen(JobRejected(self.driver.core.now, name, reason))
                self.driver.leave(record)
            self.driver.finish(record, Phase.FAILED, reason)
        else:
            record.phase, record.reason, record.place = Phase.WAITING, reason, []
            self.driver.touch(record)
            self.driver.block(record)

    def not_begun(self, record: Record, why: str) -> None:
        """A run could not begin, for lack of disk or processes: the job waits for better times, but not for ever."""
        said(log, "a job could not be started", logging.ERROR, job=record.id, error=why)
        self.refusals[record.id] = count = self.refusals.get(record.id, 0) + 1
        if count == MOST_REFUSALS:
            self._failed(record, Exit(lost=f"it could not be started {count} times ({why})"))
            return
        self.driver.happen(JobRefused(self.driver.core.now, self.driver.core_id[record.id], why))
        record.phase, record.started, record.place = Phase.WAITING, -1, []
        record.reason = f"it could not be started ({why})"
        self.driver.touch(record)


def over_limit(record: Record) -> str:
    """That a job ran too long."""
    return f"it reached its time limit of {show_duration((record.submission.time_s or 0) * 1e6)}"


def over_memory(record: Record) -> str:
    """That a job took too much."""
    return f"it went over its memory of {show_memory(most_memory(record.place))}"


def show_memory(mib: int) -> str:
    """An amount of memory as people write it, such as 16 GiB."""
    units = (("TiB", 1 << 20), ("GiB", 1 << 10))
    unit, size = next(((unit, size) for unit, size in units if mib >= size), ("MiB", 1))
    return f"{mib / size:.4g} {unit}"
