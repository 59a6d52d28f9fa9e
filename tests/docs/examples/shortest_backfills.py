"""Shortest backfills: two reservations, and the shortest jobs pass them first."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.model.units import HOUR
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.orders.sjf import Sjf
from kant.queueing.reservation_backfill import ReservationBackfill


class ShortestBackfills(Discipline, frozen=True, tag="shortest-backfills"):
    """The first two jobs that do not fit have reservations; of the others the shortest are tried first."""

    source: ClassVar[str] = "an example of this documentation"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation jct", knowledge="estimated")
    buckets: ClassVar[bool] = False
    forecasts: ClassVar[bool] = True

    def run(self, cycle: CyclePlan) -> None:
        ReservationBackfill(cycle, depth=2, timeout=HOUR, backfill_order=Sjf()).run()
