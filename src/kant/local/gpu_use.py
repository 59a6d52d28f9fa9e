"""GPU use of running jobs, and detection of interactive jobs that leave their GPUs idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kant.local.machine import Device
from kant.local.nvml import Use
from kant.local.record import JobPhase, JobRecord
from kant.local.submission import devices
from kant.model.units import SECOND, show_duration

WARNED = 0.5
"""The fraction of the idle limit after which the job's owner is warned."""


@dataclass(slots=True)
class JobUse:
    """GPU use of a run: the fraction of time in which its GPUs were busy (the sum over `looks` checks, and the last),
    MiB of their memory in use, in total and at the peak, and since when no GPU was busy (microseconds on Kant's clock).
    """

    attempt: int
    idle_since: int
    looks: int = 0
    busy_sum: float = 0.0
    busy: float = 0.0
    memory_mib: int = 0
    total_mib: int = 0
    peak_mib: int = 0


class GpuUse:
    """GPU use of all runs. An interactive job whose GPUs idle for `limit_s` seconds is stopped (0: never)."""

    def __init__(self, places: Sequence[Device], limit_s: float = 0.0) -> None:
        self.places = places
        self.limit = round(limit_s * SECOND)
        self.gpus: Mapping[int, Use] = {}
        self.jobs: dict[str, JobUse] = {}

    def look(self, gpus: Mapping[int, Use], records: Iterable[JobRecord], now: int) -> list[JobRecord]:
        """Record the GPUs' use since the last call. Return the jobs that have been idle for longer than the limit."""
        self.gpus, before, self.jobs = gpus, self.jobs, {}
        for record in records:
            own = self.of(record)
            if record.phase is not JobPhase.RUNNING or not own:
                continue
            found = before.get(record.id)
            if found is None or found.attempt != record.attempt:
                found = JobUse(record.attempt, now)
            found.looks += 1
            found.busy = sum(use.busy for use in own) / len(own)
            found.busy_sum += found.busy
            found.memory_mib, found.total_mib = sum(use.memory_mib for use in own), sum(use.total_mib for use in own)
            found.peak_mib = max(found.peak_mib, found.memory_mib)
            if found.busy > 0:
                found.idle_since = now
            self.jobs[record.id] = found
        return [record for record in records if self._idles(record, now) >= self.limit > 0]

    def of(self, record: JobRecord) -> list[Use]:
        """Return the use of each of a job's GPUs; empty if the use of any of them is not measured."""
        mask = devices(record.place).get(0, 0)
        gpus = sorted({device.gpu for place, device in enumerate(self.places) if mask >> place & 1})
        return [self.gpus[gpu] for gpu in gpus] if all(gpu in self.gpus for gpu in gpus) else []

    def _idles(self, record: JobRecord, now: int) -> int:
        """Return the microseconds for which an interactive job's GPUs have been idle."""
        found, terminal = self.jobs.get(record.id), record.submission.terminal
        return now - found.idle_since if found is not None and terminal is not None and terminal.pty else 0

    def warning(self, record: JobRecord, now: int) -> str:
        """Return the warning for a job whose GPUs have been idle for half of the limit; "" for other jobs."""
        idles = self._idles(record, now)
        if not self.limit or idles < WARNED * self.limit:
            return ""
        left = show_duration(max(self.limit - idles, 0))
        return f"its GPUs have been idle for {show_duration(idles)}; it is cancelled in {left} unless it uses them"

    @property
    def reason(self) -> str:
        """The reason for which a job is stopped."""
        return f"its GPUs were idle for {show_duration(self.limit)}"
