"""Trains the learned router on the simulated engines (Intelligent Router, arXiv 2408.13510).

Uses the cross-entropy method (Rubinstein, 1999): policies are drawn around the current mean, and the best ones form the
next. The objective is the mean latency of an episode, and in two of the paper's three forms also the regret: how far
the workload impact of each choice was from the best. `base` has no regret; `aware` starts at the heuristic with
constant regret, `guided` starts there and lets it decay with exp(-k / 2) in round k (after Cheng et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kant.model.errors import InputError
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.requests import Requests
from kant.serving.routers.intelligent import SCORES, WEIGHTS, Intelligent
from kant.serving.routers.round_robin import RoundRobin
from kant.serving.routing import Router

FORMS = {"base": 0.0, "aware": 0.0, "guided": 0.5}
"""The decay rate of guidance per round."""

GUIDANCE = {"base": 0.0, "aware": 1.0, "guided": 1.0}
"""Its initial weight: relative mean latency (over that of round robin) for a regret of 1 with every request."""


HEURISTIC = (-2.0, 0.0, 0.0, -1.0, *[0.0] * (SCORES - 4), -2.0, 0.0)
"""Weights with the same choices as the workload impact at equal parts: four times its score, less two."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Training parameters: `population` policies in each of `rounds`, whose best `elite` form the next mean."""

    rounds: int = 12
    population: int = 16
    elite: int = 4
    episodes: int = 2


def train(
    form: str, episode: Callable[[int], Requests], settings: EngineSettings, engines: int, seed: int, plan: TrainingPlan
) -> tuple[float, ...]:
    """Return weights trained on the episodes 0, 1, 2, …; `form` is one of FORMS.

    All policies of a round are evaluated on the same episodes, and no episode is reused. Raises InputError for another
    form.
    """
    if form not in FORMS:
        raise InputError("form", f"one of {', '.join(FORMS)}", form)
    draw = np.random.Generator(np.random.PCG64(seed))
    mean, spread = np.zeros(WEIGHTS), np.ones(WEIGHTS)
    mean[SCORES], spread[SCORES] = -3.0, 3.0  # few are held at first
    if GUIDANCE[form]:
        mean, spread = np.array(HEURISTIC), np.full(WEIGHTS, 0.5)
    for k in range(plan.rounds):
        coming = [episode(k * plan.episodes + i) for i in range(plan.episodes)]
        weight = GUIDANCE[form] * math.exp(-FORMS[form] * k)
        usual = [_latency(RoundRobin(), requests, settings, engines) for requests in coming]
        drawn = mean + spread * draw.standard_normal((plan.population, WEIGHTS))
        costs = []
        for weights in drawn.tolist():
            cost = 0.0
            for requests, base in zip(coming, usual, strict=True):
                router = Intelligent(tuple(weights), watch=True)
                cost += _latency(router, requests, settings, engines) / base
                cost += weight * float(np.mean(router.regrets))
            costs.append(cost)
        best = drawn[np.argsort(costs, kind="stable")[: plan.elite]]
        mean = 0.3 * mean + 0.7 * best.mean(axis=0)
        spread = 0.5 * spread + 0.5 * (best.std(axis=0) + 0.1)
    return tuple(mean.tolist())


def _latency(router: Router, requests: Requests, settings: EngineSettings, engines: int) -> float:
    """Return the mean seconds from arrival to end."""
    served = simulate(requests, settings, engines, router=router)
    return float((served.finish - requests.arrival).mean())
