"""EASY: backfilling behind one reservation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.model.taxonomy import Tags, tagged
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.order import Order
from kant.queueing.reservation_backfill import ReservationBackfill


class Easy(Discipline, frozen=True, tag="easy"):
    """The first `heads` jobs that do not fit have reservations in time, on real devices. Any other job starts if it
    fits and does not delay them. Plans with the profile's `[estimates]`.

    The heads are the first jobs in the profile's order; the others are tried in `backfill_order` (by default the same
    order): with `sjf` this is EASY-SJBF (D. Tsafrir, Y. Etsion, D. G. Feitelson, IEEE TPDS 18(6), 2007). The order
    selects the heads in every cycle. With `sticky` a head keeps its reservation even if another job is now ahead of it,
    unless that job has a higher priority. To let another job start, reservations may take other devices at the same
    start, while there are at most `moves` of them.

    A head that cannot have a reservation, because no job's end is known, is served after `timeout_s` as by `backfill`.
    """

    heads: Annotated[int, Meta(ge=1, le=10**6)] = 1
    sticky: bool = False
    moves: Annotated[int, Meta(ge=0, le=10**6)] = 256
    backfill_order: Order | None = None
    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "D. A. Lifka, The ANL/IBM SP scheduling system, JSSPP 1995"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation jct", knowledge="estimated")
    buckets: ClassVar[bool] = False
    forecasts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        order = self.backfill_order
        if order is not None and (order.shares or order.remembers):
            name = order.__struct_config__.tag
            raise ValueError(f"backfill_order {name} cannot be used, as it ranks queues or remembers running jobs")

    def run(self, cycle: CyclePlan) -> None:
        ReservationBackfill(
            cycle,
            depth=self.heads,
            timeout=self.timeout_s * SECOND,
            sticky=self.sticky,
            moves=self.moves,
            backfill_order=self.backfill_order,
        ).run()
