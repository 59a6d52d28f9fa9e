"""HEFT_RT: HEFT reduced to the ready stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class HeftRt:
    """The ready stage with the longest mean duration goes where it would end first, without transfers.

    The rule ignores the graph: it ranks a stage by its duration, like a stage without successors, and ignores the
    stage's predecessors and the location of its data. DeepSoCS (arXiv 2005.07666) is compared with this rule.
    """

    source: ClassVar[str] = "the rule with which DeepSoCS is compared, arXiv 2005.07666"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].stages[key[1]].mean, -key[0], -key[1]))
        return key, board.earliest_finish(key, transfers=False)[1]
