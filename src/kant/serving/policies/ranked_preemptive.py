"""The shortest predicted output first, before every step: Learning to Rank (arXiv 2408.15792)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kant.serving import columns as c
from kant.serving.columns import Times
from kant.serving.engine import Engine
from kant.serving.policies.ranked import Ranked


@dataclass
class RankedPreemptive(Ranked):
    """The scheduler of arXiv 2408.15792: every step runs the requests with the shortest predicted outputs.

    A request that has not run for `starved` steps goes before all others for `period` steps; 0: never.
    """

    starved: int = 0
    period: int = 10
    marks: dict[int, Times] = field(default_factory=dict, init=False)
    """For each engine, a row per request: steps without a run, steps for which it stays raised, its own priority."""

    preemptive = True

    def __post_init__(self) -> None:
        self.by_step = self.starved > 0

    def after_step(self, engine: Engine, took: float) -> None:
        marks = self.marks.get(id(engine), np.zeros((0, 3)))
        if len(marks) < engine.count:
            marks = np.concatenate([marks, np.zeros((engine.count, 3))])
            self.marks[id(engine)] = marks
        priority = engine.times[:, c.PRIORITY]
        ran = engine.ran()
        live = engine.live()
        idle = live[~np.isin(live, ran)]
        marks[ran, 0] = 0
        marks[idle, 0] += 1
        lowered = ran[marks[ran, 1] == 1]
        marks[ran, 1] = np.maximum(marks[ran, 1] - 1, 0)
        priority[lowered] = marks[lowered, 2]
        raised = idle[(marks[idle, 0] >= self.starved) & (marks[idle, 1] == 0)]
        marks[raised, 1], marks[raised, 2] = self.period, priority[raised]
        priority[raised] = -np.inf
        if len(raised):
            engine.reorder()
