"""The rules by which workflows are planned, each a small frozen class, and all of them by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.graph import NEVER, Graph
from kant.optimize.workflow.learned import LearnedRule
from kant.optimize.workflow.policy import STAGES, WorkflowRule


@dataclass(frozen=True, slots=True)
class Heft:
    """The stage of the highest upward rank goes where it ends first, also into a gap before what is placed already.

    It places a whole graph when it arrives. Source: H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002.
    """

    source: ClassVar[str] = "H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002"
    tags: ClassVar[Tags] = tagged(STAGES, timing="offline online")
    whole: ClassVar[bool] = True

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].upward[key[1]], -key[0], -key[1]))
        return key, board.earliest_finish(key)[1]


@dataclass(frozen=True, slots=True)
class Cpop:
    """The stage on the longest path goes first; the critical path goes to one processor.

    That is the processor on which the path takes the least time; without one that can run all of it, and for all other
    stages, it is where they end first. It places a whole graph when it arrives. Source: H. Topcuoglu, S. Hariri,
    M.-Y. Wu, IEEE TPDS 13(3), 2002.
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


@dataclass(frozen=True, slots=True)
class Etf:
    """Of all ready stages and all processors, the pair that ends first.

    After J.-J. Hwang, Y.-C. Chow, F. D. Anger, C.-Y. Lee, SIAM J. Comput. 18(2), 1989, who take the pair that starts
    first; on processors of several speeds the end is what counts, as DS3 (arXiv 2003.09016) has it.
    """

    source: ClassVar[str] = "J.-J. Hwang et al., SIAM J. Comput. 18(2), 1989; DS3, arXiv 2003.09016"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        (_, processor), key = min((board.earliest_finish(key), key) for key in open)
        return key, processor


@dataclass(frozen=True, slots=True)
class Rank:
    """The ready stage of the highest upward rank in its whole graph goes where it ends first.

    With `transfers` false it goes where it would end first if its data were there: compared with `heft-rt` that shows
    the value of the order alone.
    """

    transfers: bool = True
    source: ClassVar[str] = "the order of HEFT among ready stages"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].upward[key[1]], -key[0], -key[1]))
        return key, board.earliest_finish(key, self.transfers)[1]


@dataclass(frozen=True, slots=True)
class Eft:
    """The stage that has been ready longest goes where it ends first."""

    source: ClassVar[str] = "earliest finish time"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        return open[0], board.earliest_finish(open[0])[1]


@dataclass(frozen=True, slots=True)
class Met:
    """The stage that has been ready longest goes to the processor that is fastest for it, however long the wait there.

    Of equally fast processors it is the one where it ends first. Source: R. F. Freund et al., "Scheduling resources in
    multi-user, heterogeneous, computing environments with SmartNet", HCW 1998.
    """

    source: ClassVar[str] = "R. F. Freund et al., SmartNet, HCW 1998"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = open[0]
        stage = board.graphs[key[0]].stages[key[1]]
        fastest = [p for p in board.able(key) if stage.durations[p] == stage.least]
        return key, min(fastest, key=lambda p: (board.finish(key, p), p))


@dataclass(frozen=True, slots=True)
class HeftRt:
    """The ready stage with the longest mean duration goes where it would end first, without transfers.

    It knows no graph: it takes the upward rank of a stage to be its duration, as for one without successors, and
    ignores its predecessors and the location of its data. DeepSoCS (arXiv 2005.07666) is compared with this rule.
    """

    source: ClassVar[str] = "the rival of DeepSoCS, arXiv 2005.07666"
    tags: ClassVar[Tags] = STAGES
    whole: ClassVar[bool] = False

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        key = max(open, key=lambda key: (board.graphs[key[0]].stages[key[1]].mean, -key[0], -key[1]))
        return key, board.earliest_finish(key, transfers=False)[1]


POLICIES: dict[str, WorkflowRule] = {
    "heft": Heft(),
    "cpop": Cpop(),
    "learned": LearnedRule(),
    "etf": Etf(),
    "rank": Rank(),
    "eft": Eft(),
    "met": Met(),
    "heft-rt": HeftRt(),
}
"""The rules by name, in the order in which comparisons list them."""
