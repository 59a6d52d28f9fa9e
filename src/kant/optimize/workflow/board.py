"""The state that a policy sees: the graphs, where their stages run, and the runs of each processor that go on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kant.optimize.workflow.graph import NEVER, Graph, StageRun

Key = tuple[int, int]
"""A stage: the number of its graph, and the stage's index in the graph."""


class Board:
    """The state of a plan or of a stream at a time `now`. Stages that have been placed stay where they are."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.graphs = graphs
        self.now = 0
        self.runs: dict[Key, StageRun] = {}
        self.arrived: dict[int, int] = {}
        count = len(graphs[0].processors) if graphs else 0
        self.processors = range(count)
        # The runs of each processor that have not ended: their ends and starts, both in order of time.
        self._ends: list[list[int]] = [[] for _ in self.processors]
        self._starts: list[list[int]] = [[] for _ in self.processors]

    def data_there(self, key: Key, processor: int) -> int:
        """The time at which a stage's input data is on a processor, at least `now`. Its predecessors must be placed."""
        graph, stage = key
        at = self.now
        for j, ticks in self.graphs[graph].stages[stage].before:
            run = self.runs[graph, j]
            there = run.end if run.processor == processor else run.end + ticks
            if there > at:
                at = there
        return at

    def start(self, processor: int, ready: int, duration: int) -> int:
        """The earliest start at or after `ready`, in a gap between runs or after the last (insertion, as in HEFT)."""
        ends, starts = self._ends[processor], self._starts[processor]
        for n in range(bisect_right(ends, ready), len(ends)):
            if ready + duration <= starts[n]:
                return ready
            if ends[n] > ready:
                ready = ends[n]
        return ready

    def finish(self, key: Key, processor: int, transfers: bool = True) -> int:
        """When a stage would end on a processor that can run it. `transfers=False`: data transfers are ignored."""
        duration = self.graphs[key[0]].stages[key[1]].durations[processor]
        ready = self.data_there(key, processor) if transfers else self.now
        return self.start(processor, ready, duration) + duration

    def able(self, key: Key) -> list[int]:
        """The processors that can run a stage."""
        durations = self.graphs[key[0]].stages[key[1]].durations
        return [p for p in self.processors if durations[p] != NEVER]

    def earliest_finish(self, key: Key, transfers: bool = True) -> tuple[int, int]:
        """The earliest end of a stage, and the first processor that offers it."""
        return min((self.finish(key, p, transfers), p) for p in self.able(key))

    def place(self, key: Key, processor: int) -> StageRun:
        """Place a stage on a processor, at the earliest start there."""
        duration = self.graphs[key[0]].stages[key[1]].durations[processor]
        start = self.start(processor, self.data_there(key, processor), duration)
        run = self.runs[key] = StageRun(*key, processor, start, start + duration)
        if duration:
            at = bisect_left(self._starts[processor], start)
            self._starts[processor].insert(at, start)
            self._ends[processor].insert(at, run.end)
        return run

    def move_on(self, now: int) -> None:
        """Advance time to `now`, and drop the runs that have ended by then."""
        self.now = now
        for ends, starts in zip(self._ends, self._starts, strict=True):
            over = bisect_right(ends, now)
            del ends[:over], starts[:over]
