"""Carries out a policy: on graphs that arrive over time, or on a single graph that is there from the start."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from kant.optimize.workflow.board import Board, Key
from kant.optimize.workflow.graph import Graph, StageRun
from kant.optimize.workflow.policy import WorkflowRule

STAGE_ENDS, GRAPH_COMES = 0, 1
"""The order of events at the same time: stages end before graphs arrive, so that they make room."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The result of a stream. `arrivals` and `ends` are times of accepted graphs; `lost` counts the others."""

    runs: tuple[StageRun, ...]
    arrivals: dict[int, int]
    ends: dict[int, int]
    lost: int

    @property
    def latencies(self) -> list[int]:
        """The time from arrival to end of each graph."""
        return [self.ends[k] - at for k, at in self.arrivals.items()]

    @property
    def latency(self) -> float:
        """The mean of the latencies; 0 if no graph arrived."""
        return sum(self.latencies) / len(self.latencies) if self.arrivals else 0.0


def stream(graphs: Sequence[Graph], arrivals: Sequence[int], policy: WorkflowRule, most: int = 0) -> Stream:
    """Let graph k arrive at time `arrivals[k]`, and place its stages as the policy chooses, until all have ended.

    All graphs have the same processors. While `most` graphs are in progress, arriving graphs are lost, as in DS3 (arXiv
    2003.09016). 0: no graph is lost.
    """
    board = Board(graphs)
    events = [(at, GRAPH_COMES, k, 0) for k, at in enumerate(arrivals)]
    heapq.heapify(events)
    left: dict[int, int] = {}
    waits: dict[Key, int] = {}
    ends: dict[int, int] = {}
    lost = 0
    while events:
        board.move_on(events[0][0])
        ready: list[Key] = []
        while events and events[0][0] == board.now:
            _, kind, k, i = heapq.heappop(events)
            if kind == GRAPH_COMES:
                if most and len(left) >= most:
                    lost += 1
                    continue
                board.arrived[k] = board.now
                left[k] = len(graphs[k].stages)
                waits.update(((k, i), len(stage.before)) for i, stage in enumerate(graphs[k].stages))
                ready += [(k, i) for i, stage in enumerate(graphs[k].stages) if not stage.before]
                continue
            left[k] -= 1
            if not left[k]:
                del left[k]
                ends[k] = board.now
            if not policy.whole:
                ready += _fewer(graphs, waits, k, i)
        while ready:
            key, processor = policy.choose(board, ready)
            run = board.place(key, processor)
            heapq.heappush(events, (run.end, STAGE_ENDS, *key))
            ready.remove(key)
            if policy.whole:
                ready += _fewer(graphs, waits, *key)
    return Stream(tuple(board.runs.values()), board.arrived, ends, lost)


def _fewer(graphs: Sequence[Graph], waits: dict[Key, int], k: int, i: int) -> list[Key]:
    """The stages of a graph whose last pending dependency was stage i, which has now been placed or has ended."""
    free = []
    for j, _ in graphs[k].after[i]:
        waits[k, j] -= 1
        if not waits[k, j]:
            free.append((k, j))
    return free


def plan(graph: Graph, policy: WorkflowRule) -> tuple[StageRun, ...]:
    """The runs of one graph that arrives at time zero, in the order in which they were placed."""
    return stream((graph,), (0,), policy).runs
