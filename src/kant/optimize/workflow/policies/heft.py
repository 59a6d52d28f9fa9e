"""HEFT: heterogeneous earliest finish time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.optimize.workflow.board import Board, Key


@dataclass(frozen=True, slots=True)
class Heft:
    """The stage of the highest upward rank goes where it ends first, also into a gap before what is placed already.

    It places a whole graph when it arrives. Source: H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002.
    """

    whole: ClassVar[bool] = True

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].upward[key[1]], -key[0], -key[1]))
        return key, board.earliest_finish(key)[1]
