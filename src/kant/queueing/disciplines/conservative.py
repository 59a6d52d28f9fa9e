"""Conservative: backfilling behind a reservation for every job."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.model.units import SECOND
from kant.queueing import backfill
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


class Conservative(Discipline, frozen=True, tag="conservative"):
    """Every waiting job is promised a place in time, on real devices, and a job starts only where it delays no promise.
    With `depth`, only so many jobs hold promises at a time. Plans with the profile's `[estimates]`.

    A head that cannot be promised anything, because nobody knows when the others end, is seated after `timeout_s` as
    `backfill` does it.
    """

    depth: Annotated[int, Meta(ge=0, le=10**6)] = 0
    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001"
    lanes: ClassVar[bool] = False
    forecasts: ClassVar[bool] = True

    def run(self, turn: Turn) -> None:
        backfill.Backfill(turn, self.depth, self.timeout_s * SECOND).run()
