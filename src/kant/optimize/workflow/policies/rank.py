"""Rank order for streams: HEFT's order among the stages that are ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Rank:
    """The ready stage with the highest upward rank in its graph goes where it ends first.

    With `transfers` false, it goes where it would end first if no data had to be moved. Compared with `heft-rt`, this
    shows the value of the order alone.
    """

    transfers: bool = True
    source: ClassVar[str] = "the order of HEFT among ready stages"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].upward[key[1]], -key[0], -key[1]))
        return key, board.earliest_finish(key, self.transfers)[1]
