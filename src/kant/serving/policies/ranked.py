"""Shortest predicted output first: Learning to Rank (arXiv 2408.15792) and its baselines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.columns import Times
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy


class Ranked(Policy):
    """The shortest predicted output is admitted first; running requests are not preempted."""

    source: ClassVar[str] = "Learning to Rank, Fu et al., NeurIPS 2024, arXiv 2408.15792"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="latency", knowledge="learned", method="learned")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)

    by_priority = True

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return job.predicted


@dataclass(frozen=True)
class RankedBounded(Ranked):
    """The shortest predicted output first, but none before a request that arrived `bound_s` seconds earlier, or more.

    A second of waiting is worth `longest / bound_s` tokens, and predictions beyond `longest` tokens count as so many.
    The priority is fixed when a request comes, so a stock vLLM keeps the bound too. The bound is ours: the paper raises
    those that have not run for some steps.
    """

    bound_s: float = 120.0
    longest: float = 512.0

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return max(0.0, min(job.predicted, self.longest)) + self.longest * job.now / self.bound_s


@dataclass
class RankedPreemptive(Ranked):
    """The paper's scheduler: the shortest predicted outputs run, before every step.

    A request that has not run for `starved` steps goes before all others for `period` steps; 0 for never.
    """

    starved: int = 0
    period: int = 10
    marks: dict[int, Times] = field(default_factory=dict, init=False)
    """For each engine, a row per request: steps without a run, raised steps left, and its own priority."""

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
        live = np.array(list(engine.live()), dtype=np.int64)
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


class RemainingFirst(Ranked):
    """The shortest predicted remaining output runs, before every step: SRPT on predictions."""

    source: ClassVar[str] = "L. Schrage, Operations Research 16, 1968, on predictions"

    preemptive = True
    by_step = True

    def after_step(self, engine: Engine, took: float) -> None:
        ran = engine.ran()
        ran = ran[engine.requests[ran, c.COMPUTED] + 1 >= engine.requests[ran, c.PROMPT]]
        engine.times[ran, c.PRIORITY] -= 1
