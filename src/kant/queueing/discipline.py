"""What a discipline is: who may be tried, and what happens when the first in line does not fit."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from kant.model.decision import NoFit
from kant.queueing.turn import Turn


class Discipline(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the disciplines."""

    source: ClassVar[str] = ""
    lanes: ClassVar[bool] = True
    """Whether it serves the lanes; otherwise it looks at all live jobs in every cycle, and none are kept."""

    def lane(self, queue: int, shape: int) -> tuple[int, ...]:
        """Jobs in one lane are tried in order, and the first that does not fit stops the lane."""
        return (queue,)

    def run(self, turn: Turn) -> None:
        """Write this cycle's decisions into `turn.plan`. By default: serve the lanes, best head first."""
        for row, shape, lane in turn.waiting.walk():
            result = turn.place(row, shape)
            if isinstance(result, NoFit):
                turn.hold(row, result)
                turn.waiting.block(shape)
            else:
                turn.start(row, result)
                turn.waiting.took(lane)
