"""MET: minimum execution time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Met:
    """The stage that has been ready longest goes to the processor that is fastest for it, however long the wait there.

    Of equally fast processors, the one where the stage ends first is chosen. Source: R. F. Freund et al., "Scheduling
    resources in multi-user, heterogeneous, computing environments with SmartNet", HCW 1998.
    """

    source: ClassVar[str] = "R. F. Freund et al., SmartNet, HCW 1998"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = open[0]
        stage = board.graphs[key[0]].stages[key[1]]
        fastest = [p for p in board.able(key) if stage.durations[p] == stage.least]
        return key, min(fastest, key=lambda p: (board.finish(key, p), p))
