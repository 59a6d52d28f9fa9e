"""What a discipline is: who may be tried, and what happens when the first in line does not fit."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from kant.queueing.turn import Turn


class Discipline(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the disciplines."""

    source: ClassVar[str] = ""
    lanes: ClassVar[bool] = True
    """Whether it serves the lanes; otherwise it looks at all live jobs in every cycle, and none are kept."""
    forecasts: ClassVar[bool] = False
    """Whether it asks when something will be free, so that the cycle keeps a forecast for it."""
    quotas: ClassVar[bool] = True
    """Whether it heeds quotas, back-offs and bursts. Those that reproduce an experiment do not."""

    def lane(self, queue: int, shape: int) -> tuple[int, ...]:
        """Jobs in one lane are tried in order; the first that cannot start stops the lane. Its queue comes first."""
        return (queue,)

    def run(self, turn: Turn) -> None:
        """Write this cycle's decisions into `turn.plan`. By default: serve the lanes, best head first."""
        for row, shape, lane in turn.waiting.walk(turn.share if turn.order.shares else None):
            result = turn.seat(row, shape)
            if isinstance(result, np.ndarray):
                turn.start(row, result)
                turn.waiting.took(lane)
            else:
                turn.hold(row, result)
                turn.waiting.block(lane, shape, turn.retry_at, turn.lasts)
        turn.review(turn.waiting.retry_at)
