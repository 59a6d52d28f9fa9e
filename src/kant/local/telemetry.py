"""Telemetry of this machine's Kant: what every live Kant has, and its jobs by where they stand (docs/up.md)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from kant.live import telemetry
from kant.live.telemetry import Standing
from kant.local.record import OVER, Phase, Record

if TYPE_CHECKING:
    from kant.local.driver import Driver


class Telemetry(telemetry.Telemetry):
    """Of one driver, which tells it what happens."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        super().__init__()
        self.stand = lambda: (driver.core.state, driver.core.now)

    def counters(self) -> list[Counter | Histogram | Gauge]:
        here = self.registry
        return [
            *super().counters(),
            Counter("kant_jobs_over", "Jobs that are over, by how they ended.", ["phase"], registry=here),
            Counter("kant_runs_started", "Runs that began.", registry=here),
            Counter("kant_jobs_pruned", "Old jobs that were forgotten.", registry=here),
        ]

    def standing(self) -> Standing:
        return _Standing(self)

    def started(self, record: Record) -> None:
        """A run of the job begins."""
        self._inc("kant_runs_started")
        state, name = self.driver.core.state, self.driver.core_id.get(record.id)
        if name is not None:
            self.whole(state, state.rows[name], self.driver.core.now)

    def changed(self, record: Record) -> None:
        """A job has changed, and that is safe."""
        if record.phase in OVER:
            self._inc("kant_jobs_over", phase=str(record.phase))

    def pruned(self, jobs: int) -> None:
        self._inc("kant_jobs_pruned", jobs)


class _Standing(Standing):
    telemetry: Telemetry

    def collect(self) -> Iterator[Metric]:
        driver = self.telemetry.driver
        family = GaugeMetricFamily("kant_jobs", "Jobs that are not over, by where they stand.", labels=["phase"])
        counts = Tally(str(record.phase) for record in driver.records.values())
        for phase in Phase:
            if phase not in OVER:
                family.add_metric([str(phase)], counts[str(phase)])
        yield family
        writable = GaugeMetricFamily("kant_store_writable", "1 unless the store cannot be written.")
        writable.add_metric([], int(not driver.trouble))
        yield writable
        yield from super().collect()
