"""EASY: backfilling behind one reservation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.model.taxonomy import Tags, tagged
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.reservation_backfill import ReservationBackfill


class Easy(Discipline, frozen=True, tag="easy"):
    """The first `heads` jobs that do not fit have reservations in time, on real devices; any other that fits starts
    if it ends before these are needed or needs none of them. Plans with the profile's `[estimates]`.

    A head that can have no reservation, because no job's end is known, is served after `timeout_s` as
    `backfill` does it.
    """

    heads: Annotated[int, Meta(ge=1, le=10**6)] = 1
    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "D. A. Lifka, The ANL/IBM SP scheduling system, JSSPP 1995"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation jct", knowledge="estimated")
    buckets: ClassVar[bool] = False
    forecasts: ClassVar[bool] = True

    def run(self, cycle: CyclePlan) -> None:
        ReservationBackfill(cycle, self.heads, self.timeout_s * SECOND).run()
