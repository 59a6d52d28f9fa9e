"""Loss: who does not fit at once leaves."""

from __future__ import annotations

from typing import ClassVar

from kant.model.decision import NoFit
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


class Loss(Discipline, frozen=True, tag="loss"):
    """Nobody waits: a job that does not fit on arrival is rejected. For static packing experiments."""

    source: ClassVar[str] = "A. K. Erlang's loss system, 1917; static packing of FGD, USENIX ATC 2023, section 6"
    quotas: ClassVar[bool] = False

    def run(self, turn: Turn) -> None:
        for row, shape, lane in turn.waiting.walk():
            result = turn.place(row, shape)
            if isinstance(result, NoFit):
                turn.reject(row, result)
            else:
                turn.start(row, result)
            turn.waiting.took(lane)
