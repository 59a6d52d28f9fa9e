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
    """Every waiting job has a reservation in time, on real devices, and a job starts only where it delays none.
    With `depth`, only so many jobs hold one at a time. Plans with the profile's `[estimates]`.

    Of the published variants this is the one that keeps reservations and compresses the schedule (A. W. Mu'alem and
    D. G. Feitelson, IEEE TPDS 12(6), 2001): in every cycle each reservation, in the order of the queue, moves to the
    earliest start that it finds beside all others, which is never later than its own. Without `sticky` all of them are
    given again in every cycle, in the order of the queue, so that a job which comes before others may put them off. So
    that a job starts earlier, up to `moves` reservations take other devices at the same start.

    A head that can have no reservation, because no job's end is known, is served after `timeout_s` as
    `backfill` does it.
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
