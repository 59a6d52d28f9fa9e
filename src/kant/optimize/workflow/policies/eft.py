"""EFT: earliest finish time, in the order in which stages become ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.optimize.workflow.board import Board, Key


@dataclass(frozen=True, slots=True)
class Eft:
    """The stage that has been ready longest goes where it ends first."""

    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        return open[0], board.earliest_finish(open[0])[1]
