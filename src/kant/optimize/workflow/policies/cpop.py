"""CPOP: critical path on a processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.graph import NEVER, Graph
from kant.optimize.workflow.policy import STAGES


@dataclass(frozen=True, slots=True)
class Cpop:
    """The stage on the longest path goes first; all stages of the critical path go to one processor.

    This is the processor on which the path takes the least time. All other stages go where they end first, and so do
    those of the path if no processor can run the whole path. The rule places a whole graph when the graph arrives.
    Source: H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002.
    """

    source: ClassVar[str] = "H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002"
    tags: ClassVar[Tags] = tagged(STAGES, timing="offline online")
    whole: ClassVar[bool] = True

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        def longest(key: Key) -> tuple[float, int, int]:
            graph = board.graphs[key[0]]
            return graph.upward[key[1]] + graph.downward[key[1]], -key[0], -key[1]

        key = max(open, key=longest)
        graph = board.graphs[key[0]]
        if key[1] in graph.critical_path:
            processor = _processor_of_path(graph)
            if processor is not None:
                return key, processor
        return key, board.earliest_finish(key)[1]


def _processor_of_path(graph: Graph) -> int | None:
    """The processor on which the critical path takes least time; None if no processor can run all of it."""
    path = [graph.stages[i].durations for i in graph.critical_path]
    able = [p for p in range(len(graph.processors)) if all(durations[p] != NEVER for durations in path)]
    return min(able, key=lambda p: (sum(durations[p] for durations in path), p), default=None)
