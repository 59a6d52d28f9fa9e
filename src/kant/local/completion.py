"""Settles jobs whose run has ended, was stopped, or could not begin."""

from __future__ import annotations

import logging

from kant.live.logs import log_event
from kant.local.jobs import LocalJobs
from kant.local.output import read_output
from kant.local.record import JobPhase, JobRecord
from kant.local.runs import Exit
from kant.local.submission import most_memory
from kant.model.event import JobCancelled, JobEvicted, JobFailed, JobFinished, JobRefused, JobRejected
from kant.model.units import show_duration

log = logging.getLogger("kant.local")
CANCELLED = "cancelled"
"""The beginning of `JobRecord.stopping` for a cancelled job; if no user cancelled it, a colon and a reason follow."""
MOST_REFUSALS = 10
"""The number of failed starts after which a job fails."""
GPU_FULL = (
    b"CUDA out of memory",
    b"CUDA_ERROR_OUT_OF_MEMORY",
    b"cudaErrorMemoryAllocation",
    b"RESOURCE_EXHAUSTED: Out of memory",
)
"""Messages of PyTorch, the CUDA driver, the CUDA runtime and XLA when a GPU has no memory left."""
SAID = 1 << 14
"""The number of bytes at the end of a failed run's output that are searched for these messages."""


class Completion:
    """Settles the jobs of ended runs. If the core no longer knows a job, only its record changes."""

    def __init__(self, jobs: LocalJobs) -> None:
        self.jobs = jobs

    def settle(self, record: JobRecord, exit: Exit) -> None:
        """Settle a run that ended on its own or was stopped."""
        self.jobs.launcher.gone(record)
        record.code, record.signal, record.rss_kib = exit.code, exit.signal, exit.rss_kib
        record.ended = self.jobs.clock.micros()
        stopping, record.stopping = record.stopping, ""
        if exit.unborn and not stopping and record.id in self.jobs.core_id:
            self.not_begun(record, exit.lost)
        elif stopping.startswith(CANCELLED):
            self.jobs.finish(record, JobPhase.CANCELLED, stopping.removeprefix(CANCELLED).removeprefix(": "))
        elif stopping and not (exit.code == 0 and not exit.why):
            self._stopped(record, stopping)
        elif exit.code == 0 and exit.why not in ("limit", "memory"):
            self._finished(record)
        elif exit.is_of_machine:
            self._again(record, exit.lost or "its machine lost the connection to Kant")
        else:
            self._failed(record, exit)
        if exit.dropped:
            record.reason = "; ".join(part for part in (record.reason, dropped_output(exit.dropped)) if part)

    def _stopped(self, record: JobRecord, why: str) -> None:
        """Settle a stopped run. The core has already requeued or dropped the job."""
        record.place = []
        if why == "limit" and record.failures > record.submission.retries:
            self.jobs.finish(record, JobPhase.FAILED, over_limit(record))
        else:
            record.phase = JobPhase.WAITING
            record.reason = {"limit": over_limit(record)}.get(why, f"it was stopped: {why}")
            self.jobs.touch(record)
            self.jobs.block(record)

    def _finished(self, record: JobRecord) -> None:
        """Settle a successful run, even if it ended after it was told to stop."""
        name = self.jobs.core_id.get(record.id)
        if name is not None:
            state = self.jobs.core.state
            runs = state.rows[name] in state.running and not self.jobs.launcher.is_planned(record)
            self.jobs.launcher.cancel_plan(record)
            event = JobFinished if runs else JobCancelled
            self.jobs.core.happen(event(self.jobs.core.now, name))
            self.jobs.leave(record)
        self.jobs.finish(record, JobPhase.FINISHED, "")

    def _again(self, record: JobRecord, reason: str) -> None:
        """Requeue a job whose run was lost through no fault of its own."""
        name = self.jobs.core_id.get(record.id)
        if name is not None and self.jobs.core.state.rows[name] in self.jobs.core.state.running:
            self.jobs.core.happen(JobEvicted(self.jobs.core.now, name, reason))
        record.phase, record.reason, record.place = JobPhase.WAITING, reason, []
        self.jobs.touch(record)
        self.jobs.block(record)

    def _failed(self, record: JobRecord, exit: Exit) -> None:
        """Settle a failed run: requeue the job if it has retries left, otherwise record its failure."""
        if exit.lost:
            reason = exit.lost
        elif exit.why == "limit":
            reason = over_limit(record)
        elif exit.why == "memory":
            reason = over_memory(record)
        else:
            reason = f"exit code {exit.code}" if exit.code is not None else f"killed by signal {exit.signal}"
            if record.submission.gpus and self._filled_its_gpu(record):
                reason += ": its GPU had no memory left, as its output says"
        record.failures += 1
        name = self.jobs.core_id.get(record.id)
        if name is not None:
            self.jobs.core.happen(JobFailed(self.jobs.core.now, name, reason))
        if record.failures > record.submission.retries:
            if name is not None:
                self.jobs.core.happen(JobRejected(self.jobs.core.now, name, reason))
                self.jobs.leave(record)
            self.jobs.finish(record, JobPhase.FAILED, reason)
        else:
            record.phase, record.reason, record.place = JobPhase.WAITING, reason, []
            self.jobs.touch(record)
            self.jobs.block(record)

    def _filled_its_gpu(self, record: JobRecord) -> bool:
        """Return whether the end of the run's output says that a GPU had no memory left."""
        try:
            said = read_output(self.jobs.launcher.folder(record), -SAID, SAID).data
        except OSError:
            return False
        return any(each in said for each in GPU_FULL)

    def not_begun(self, record: JobRecord, why: str) -> None:
        """Requeue a job whose run could not begin for lack of disk or processes. After `MOST_REFUSALS` such starts it
        fails."""
        log_event(log, "a job could not be started", logging.ERROR, job=record.id, error=why)
        self.jobs.refusals[record.id] = count = self.jobs.refusals.get(record.id, 0) + 1
        if count == MOST_REFUSALS:
            self._failed(record, Exit(lost=f"it could not be started {count} times ({why})"))
            return
        self.jobs.core.happen(JobRefused(self.jobs.core.now, self.jobs.core_id[record.id], why))
        record.phase, record.started, record.place = JobPhase.WAITING, -1, []
        record.reason = f"it could not be started ({why})"
        self.jobs.touch(record)


def dropped_output(size: int) -> str:
    """Return the sentence that says that `size` bytes of output were lost because the disk was full."""
    return f"{size:,} bytes of its output are lost: the disk was full"


def over_limit(record: JobRecord, now: int = -1) -> str:
    """Return the sentence about a job that reached its limit or its reservation's end (at `now` if it still runs)."""
    inside, limit = record.submission.reservation, record.submission.time_s
    ran = (record.ended if record.ended >= 0 else now) - record.started
    if inside and (limit is None or ran < limit * 1e6):
        return f"its reservation {inside} has ended"
    return f"it reached its time limit of {show_duration((record.submission.time_s or 0) * 1e6)}"


def over_memory(record: JobRecord) -> str:
    """Return the sentence that says that a job exceeded its memory."""
    return f"it exceeded its memory of {show_memory(most_memory(record.place))}"


def show_memory(mib: int) -> str:
    """Format an amount of memory, such as 16 GiB."""
    units = (("TiB", 1 << 20), ("GiB", 1 << 10))
    unit, size = next(((unit, size) for unit, size in units if mib >= size), ("MiB", 1))
    return f"{mib / size:.4g} {unit}"
