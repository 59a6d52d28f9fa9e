"""ETF: earliest task first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Etf:
    """Of all pairs of a ready stage and a processor, the pair with the earliest end.

    After J.-J. Hwang, Y.-C. Chow, F. D. Anger, C.-Y. Lee, SIAM J. Comput. 18(2), 1989, who choose the pair that starts
    first; on processors of different speeds the end counts, as in DS3 (arXiv 2003.09016).
    """

    source: ClassVar[str] = "J.-J. Hwang et al., SIAM J. Comput. 18(2), 1989; DS3, arXiv 2003.09016"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        (_, processor), key = min((board.earliest_finish(key), key) for key in open)
        return key, processor
