"""A learned order: a weighted sum of the features of a stage. The weights were trained on streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class LearnedRule:
    """The ready stage with the highest score goes where it ends first.

    The score is the sum of these fields, each times its feature. Times are in units of the mean duration of a stage of
    the graph, ranks and ages in units of its critical path. With `finish` = -1 and the others 0 the rule is ETF. The
    idea is that of DeepSoCS (arXiv 2005.07666), a learned order with earliest-finish mapping; its graph network is left
    out. `kant plan train` finds weights; the defaults are from a study.
    """

    finish: float = -2.187
    """The time from now until the stage would end."""
    rank: float = 0.6937
    """The upward rank of the stage."""
    duration: float = 0.4152
    """The mean duration of the stage over the processors that can run it."""
    spare: float = -0.9347
    """How much shorter the longest path through the stage is than the critical path."""
    followers: float = -0.235
    """The number of successors of the stage."""
    regret: float = 0.6324
    """How much later the stage would end on the second-best processor."""
    stall: float = 0.0661
    """How much later the stage would end because of data on other processors."""
    rivals: float = 0.7302
    """The number of other ready stages that would end first on the same processor."""
    age: float = 0.1062
    """The time since the stage's graph arrived."""
    aged_rank: float = -0.1152
    """The upward rank times the age."""
    source: ClassVar[str] = "after DeepSoCS, arXiv 2005.07666; the features are ours"
    tags: ClassVar[Tags] = tagged(STAGES, method="learned rule")
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        if len(open) == 1:
            return open[0], board.earliest_finish(open[0])[1]
        ends = [sorted((board.finish(key, p), p) for p in board.able(key))[:2] for key in open]
        wanted = [best[0][1] for best in ends]
        scores = [
            self.score(board, key, best, wanted.count(best[0][1]) - 1) for key, best in zip(open, ends, strict=True)
        ]
        n = max(range(len(open)), key=lambda n: (scores[n], -n))
        return open[n], wanted[n]

    def score(self, board: Board, key: Key, ends: list[tuple[int, int]], rivals: int) -> float:
        """The score of a stage. `ends` has its two earliest possible ends, each with the processor."""
        graph = board.graphs[key[0]]
        unit, way = graph.mean, max(graph.upward) or 1.0
        first, processor = ends[0]
        rank = graph.upward[key[1]] / way
        age = (board.now - board.arrived[key[0]]) / way
        return (
            self.finish * (first - board.now) / unit
            + self.rank * rank
            + self.duration * graph.stages[key[1]].mean / unit
            + self.spare * graph.spare[key[1]] / way
            + self.followers * len(graph.after[key[1]])
            + self.regret * (ends[-1][0] - first) / unit
            + self.stall * (first - board.finish(key, processor, transfers=False)) / unit
            + self.rivals * rivals
            + self.age * age
            + self.aged_rank * rank * age
        )
