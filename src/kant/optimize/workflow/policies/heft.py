"""HEFT: heterogeneous earliest finish time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Heft:
    """The stage with the highest upward rank goes where it ends first, possibly in a gap before stages that are already
    placed.

    The rule places a whole graph at its arrival. Source: H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002.
    """

    source: ClassVar[str] = "H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002"
    tags: ClassVar[Tags] = tagged(STAGES, timing="offline online")
    whole: ClassVar[bool] = True

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].upward[key[1]], -key[0], -key[1]))
        return key, board.earliest_finish(key)[1]
