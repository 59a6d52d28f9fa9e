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
    """The first `heads` jobs that do not fit have reservations in time, on real devices; any other that fits starts
    if it ends before these are needed or needs none of them. Plans with the profile's `[estimates]`.

    The heads are the first by the profile's order, the others are tried in `backfill_order` (by default the same
    order): with `sjf` this is EASY-SJBF (D. Tsafrir, Y. Etsion, D. G. Feitelson, IEEE TPDS 18(6), 2007). The order
    decides in every cycle who the heads are; with `sticky` a head keeps its reservation though another job comes before
    it, unless that has a higher priority. So that another job may start, up to `moves` reservations take other devices
    at the same start.

    A head that can have no reservation, because no job's end is known, is served after `timeout_s` as
    `backfill` does it.
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
            raise ValueError(f"backfill_order {name} cannot be used: it ranks queues or remembers running jobs")

    def run(self, cycle: CyclePlan) -> None:
        ReservationBackfill(
            cycle,
            depth=self.heads,
            timeout=self.timeout_s * SECOND,
            sticky=self.sticky,
            moves=self.moves,
            backfill_order=self.backfill_order,
        ).run()
