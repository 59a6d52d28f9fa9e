"""Metrics of Kant on this machine: the metrics of every live Kant, and its jobs by phase (docs/up.md)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from kant.live import telemetry
from kant.live.telemetry import StateGauges
from kant.local.jobs import LocalJobs
from kant.local.record import OVER, JobPhase, JobRecord


class LocalTelemetry(telemetry.Telemetry):
    """Metrics of one driver's jobs; the driver calls this object on changes. `trouble` returns why it cannot write."""

    def __init__(self, jobs: LocalJobs, trouble: Callable[[], str]) -> None:
        self.jobs = jobs
        self.trouble = trouble
        super().__init__()
        self.stand = lambda: (jobs.core.state, jobs.core.now)

    def counters(self) -> list[Counter | Histogram | Gauge]:
        here = self.registry
        return [
            *super().counters(),
            Counter("kant_jobs_over", "Ended jobs, by how they ended.", ["phase"], registry=here),
            Counter("kant_runs_started", "Runs that began.", registry=here),
            Counter("kant_jobs_pruned", "Old jobs that were forgotten.", registry=here),
        ]

    def gauges(self) -> StateGauges:
        return _LocalGauges(self)

    def started(self, record: JobRecord) -> None:
        """Count the start of a run."""
        self._inc("kant_runs_started")
        state, name = self.jobs.core.state, self.jobs.core_id.get(record.id)
        if name is not None:
            self.whole(state, state.rows[name], self.jobs.core.now)

    def changed(self, record: JobRecord) -> None:
        """Count a changed job, once the change is on disk."""
        if record.phase in OVER:
            self._inc("kant_jobs_over", phase=str(record.phase))

    def pruned(self, jobs: int) -> None:
        self._inc("kant_jobs_pruned", jobs)


class _LocalGauges(StateGauges):
    telemetry: LocalTelemetry

    def collect(self) -> Iterator[Metric]:
        jobs = self.telemetry.jobs
        family = GaugeMetricFamily("kant_jobs", "Jobs that have not ended, by phase.", labels=["phase"])
        counts = Tally(str(record.phase) for record in jobs.records.values())
        for phase in JobPhase:
            if phase not in OVER:
                family.add_metric([str(phase)], counts[str(phase)])
        yield family
        writable = GaugeMetricFamily("kant_store_writable", "1 unless the store cannot be written.")
        writable.add_metric([], int(not self.telemetry.trouble()))
        yield writable
        yield from super().collect()
