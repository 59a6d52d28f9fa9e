"""Conservative: backfilling behind a reservation for every job."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.model.taxonomy import Tags, tagged
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.reservation_backfill import ReservationBackfill


class Conservative(Discipline, frozen=True, tag="conservative"):
    """Every waiting job has a reservation in time, on real devices, and a job starts only where it delays none. With
    `depth`, at most that many jobs hold a reservation at a time. Plans with the profile's `[estimates]`.

    Of the published variants this is the one that keeps reservations and compresses the schedule (A. W. Mu'alem and D.
    G. Feitelson, IEEE TPDS 12(6), 2001): in every cycle each reservation, in queue order, moves to the earliest start
    that the others leave free, which is never later than its present start. Without `sticky` all reservations are made
    again in every cycle, in queue order, so that a job ahead of others may delay them. To let a job start earlier,
    reservations may take other devices at the same start, while there are at most `moves` of them.

    A head that cannot have a reservation, because no job's end is known, is served after `timeout_s` as by `backfill`.
    """

    depth: Annotated[int, Meta(ge=0, le=10**6)] = 0
    sticky: bool = True
    moves: Annotated[int, Meta(ge=0, le=10**6)] = 256
    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="estimated")
    buckets: ClassVar[bool] = False
    forecasts: ClassVar[bool] = True

    def run(self, cycle: CyclePlan) -> None:
        ReservationBackfill(
            cycle, depth=self.depth, timeout=self.timeout_s * SECOND, sticky=self.sticky, moves=self.moves
        ).run()
