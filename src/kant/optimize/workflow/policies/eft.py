"""EFT: earliest finish time, in the order in which stages become ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Eft:
    """The stage that has been ready longest goes to the processor where it ends first."""

    source: ClassVar[str] = "earliest finish time"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        return open[0], board.earliest_finish(open[0])[1]
