"""Shortest first, as a predictor says: Learning to Rank (arXiv 2408.15792) and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kant.serving import columns as c
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy


class Ranked(Policy):
    """The shortest predicted output is admitted first; who runs is left alone."""

    by_priority = True

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return job.predicted


@dataclass
class RankedPreemptive(Ranked):
    """The paper's scheduler: the shortest predicted outputs run, before every step.

    A request that has not run for `starved` steps goes before all others for `period` steps; 0 for never.
    """

    starved: int = 0
    period: int = 10
    idle: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    raised: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict, init=False)

    preemptive = True

    def __post_init__(self) -> None:
        self.by_step = self.starved > 0

    def after_step(self, engine: Engine, took: float) -> None:
        ran = set(engine.ran().tolist())
        changed = False
        for r in engine.live():
            key = (id(engine), r)
            if r in ran:
                self.idle[key] = 0
                if key in self.raised:
                    left, own = self.raised[key]
                    self.raised[key] = (left - 1, own)
                    if left <= 1:
                        engine.times[r, c.PRIORITY] = own
                        del self.raised[key]
                        changed = True
                continue
            self.idle[key] = self.idle.get(key, 0) + 1
            if self.idle[key] >= self.starved and key not in self.raised:
                self.raised[key] = (self.period, float(engine.times[r, c.PRIORITY]))
                engine.times[r, c.PRIORITY] = -np.inf
                changed = True
        if changed:
            engine.reorder()


class RemainingFirst(Ranked):
    """The shortest predicted rest runs, before every step: SRPT on predictions."""

    preemptive = True
    by_step = True

    def after_step(self, engine: Engine, took: float) -> None:
        ran = engine.ran()
        ran = ran[engine.requests[ran, c.COMPUTED] + 1 >= engine.requests[ran, c.PROMPT]]
        engine.times[ran, c.PRIORITY] -= 1
