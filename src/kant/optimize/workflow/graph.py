"""A workflow as numbers, and a check of plans that is independent of how they were made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kant.model.errors import InputError

NEVER = -1
"""The duration of a stage on a processor that cannot run it."""
MOST = 1 << 50
"""The maximum duration and transfer time. It keeps sums over a graph far below 2^63."""
MOST_STAGES = 10_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A task of a graph. `durations` has the ticks on each processor; `NEVER` if the stage cannot run there.

    `before` has the stage's predecessors by index, each with the ticks of the transfer of its data to another
    processor. On the same processor, data is available at once.
    """

    id: str
    durations: tuple[int, ...]
    before: tuple[tuple[int, int], ...] = ()

    @property
    def mean(self) -> float:
        """The mean duration over the processors that can run the stage."""
        able = [duration for duration in self.durations if duration != NEVER]
        return sum(able) / len(able)

    @property
    def least(self) -> int:
        """The duration on the fastest processor for this stage."""
        return min(duration for duration in self.durations if duration != NEVER)


@dataclass(frozen=True)
class Graph:
    """Stages on `processors`, each stage after its predecessors. Raises InputError if no plan can exist."""

    processors: tuple[str, ...]
    stages: tuple[Stage, ...]
    timed: bool = False
    """Whether a tick is a microsecond; otherwise ticks are plain numbers."""

    def __post_init__(self) -> None:
        if not self.processors or not self.stages:
            raise InputError("the workflow", "at least one processor and one stage")
        if len(self.stages) > MOST_STAGES:
            raise InputError("the workflow", f"at most {MOST_STAGES:,} stages", len(self.stages))
        for i, stage in enumerate(self.stages):
            able = [duration for duration in stage.durations if duration != NEVER]
            if len(stage.durations) != len(self.processors) or not able:
                raise InputError(f"stage {stage.id}", "a processor on which it can run")
            if not all(0 <= duration <= MOST for duration in able):
                raise InputError(f"stage {stage.id}, duration", f"a time from 0 to {MOST:,}", able)
            if not all(0 <= j < i and 0 <= ticks <= MOST for j, ticks in stage.before):
                raise InputError(f"stage {stage.id}, after", "earlier stages, and transfers from 0 on", stage.before)

    @cached_property
    def after(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each stage its successors, each with the ticks of the transfer."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.stages]
        for i, stage in enumerate(self.stages):
            for j, ticks in stage.before:
                found[j].append((i, ticks))
        return tuple(map(tuple, found))

    @cached_property
    def mean(self) -> float:
        """The mean duration of the graph's stages; 1 if that is 0. It is the unit for times of this graph."""
        return sum(stage.mean for stage in self.stages) / len(self.stages) or 1.0

    @cached_property
    def upward(self) -> tuple[float, ...]:
        """The upward rank of each stage: the longest path from its start to an end of the graph.

        Ranks are those of H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling
        for heterogeneous computing", IEEE TPDS 13(3), 2002: mean durations, and transfers as between two processors.
        """
        ranks = [0.0] * len(self.stages)
        for i in reversed(range(len(ranks))):
            ranks[i] = self.stages[i].mean + max((ticks + ranks[j] for j, ticks in self.after[i]), default=0.0)
        return tuple(ranks)

    @cached_property
    def downward(self) -> tuple[float, ...]:
        """The downward rank of each stage: the longest path from a start of the graph to the stage's start."""
        ranks = [0.0] * len(self.stages)
        for i, stage in enumerate(self.stages):
            ranks[i] = max((ranks[j] + self.stages[j].mean + ticks for j, ticks in stage.before), default=0.0)
        return tuple(ranks)

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """The stages of a longest path through the graph. Of equally long paths, the first one."""
        ways = [i for i, stage in enumerate(self.stages) if not stage.before]
        path = []
        while ways:
            at = max(ways, key=lambda i: (self.upward[i], -i))
            path.append(at)
            best = max((ticks + self.upward[j] for j, ticks in self.after[at]), default=0.0)
            ways = [j for j, ticks in self.after[at] if ticks + self.upward[j] == best]
        return tuple(path)

    @cached_property
    def spare(self) -> tuple[float, ...]:
        """For each stage, by how much the longest path through it is shorter than the critical path."""
        length = max(self.upward)
        return tuple(max(length - up - down, 0.0) for up, down in zip(self.upward, self.downward, strict=True))


@dataclass(frozen=True, slots=True)
class StageRun:
    """Stage `stage` of graph `graph` on a processor from `start` to before `end`."""

    graph: int
    stage: int
    processor: int
    start: int
    end: int


def makespan(runs: Iterable[StageRun]) -> int:
    """When the last run ends."""
    return max((run.end for run in runs), default=0)
