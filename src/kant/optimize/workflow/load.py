"""Streams of graphs from a seed: how often graphs arrive, and how many may be in progress at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kant.model.errors import InputError
from kant.optimize.workflow.graph import Graph
from kant.optimize.workflow.plan import Stream, stream
from kant.optimize.workflow.policy import WorkflowRule

MOST_GRAPHS = 100_000


@dataclass(frozen=True, slots=True)
class WorkflowStream:
    """Graphs from `pool`, all equally likely, at exponentially distributed intervals of `every` ticks on average.

    `start` graphs arrive at time zero, the others before `until`. While `most` graphs are in progress, arriving graphs
    are lost (0: no limit). The streams of DS3 (arXiv 2003.09016) have `start` = `most`.
    """

    pool: tuple[Graph, ...]
    every: int
    until: int
    most: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        if self.every <= 0 or self.until <= 0:
            raise InputError("the stream", "an interval and an end above 0", (self.every, self.until))
        if self.until / self.every + self.start > MOST_GRAPHS:
            raise InputError("the stream", f"at most {MOST_GRAPHS:,} graphs", round(self.until / self.every))
        if any(graph.processors != self.pool[0].processors for graph in self.pool):
            raise InputError("the stream", "graphs with the same processors")

    def draw(self, seed: int) -> tuple[list[Graph], list[int]]:
        """The graphs that arrive, and their arrival times."""
        rng = random.Random(seed)
        arrivals = [0] * self.start
        at = 0
        while True:
            at += int(rng.expovariate(1 / self.every))
            if at >= self.until or len(arrivals) >= 2 * MOST_GRAPHS:
                break
            arrivals.append(at)
        return [rng.choice(self.pool) for _ in arrivals], arrivals

    def under(self, policy: WorkflowRule, seed: int) -> Stream:
        """The result of a policy on the stream of graphs drawn from a seed."""
        graphs, arrivals = self.draw(seed)
        return stream(graphs, arrivals, policy, self.most)
