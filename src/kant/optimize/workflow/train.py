"""Trains the learned order on streams. Training starts from weights with which the order equals that of ETF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kant.model.errors import InputError
from kant.optimize.workflow.load import WorkflowStream
from kant.optimize.workflow.policies.etf import Etf
from kant.optimize.workflow.policies.learned import LearnedRule

Weights = NDArray[np.float64]

DRAWN, KEPT = 32, 8
"""How many weight vectors are drawn in a generation, and how many of the best of them determine the next one."""
WIDTH, WIDENED, PACE = 0.5, 0.02, 0.7
"""The initial standard deviation, the amount added to it in each generation, and the step size."""


def search_weights(
    first: Weights, judge: Callable[[int], Callable[[Weights], float]], seed: int, generations: int
) -> Iterator[tuple[int, Weights, float]]:
    """Yield the number of each generation, its mean weights and their cost. The search starts from the weights `first`.

    The cross-entropy method: draw weights, keep the best, draw around these (R. Y. Rubinstein, Methodology and
    Computing in Applied Probability 1, 1999). `judge` returns the cost function for a generation; lower is better. The
    outcome depends only on the seed.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    mean, width = first.astype(np.float64), np.full(len(first), WIDTH)
    for number in range(generations):
        cost = judge(number)
        drawn = mean + width * rng.standard_normal((DRAWN, len(mean)))
        drawn[0] = mean
        costs = [cost(weights) for weights in drawn]
        best = drawn[np.argsort(costs, kind="stable")[:KEPT]]
        mean = (1 - PACE) * mean + PACE * best.mean(axis=0)
        width = (1 - PACE) * width + PACE * best.std(axis=0) + WIDENED
        yield number, mean, cost(mean)


WEIGHTS = tuple(field.name for field in fields(LearnedRule))

STREAMS = 4
"""The number of streams of each load on which a generation is judged. Each generation gets new streams."""
BASE = 1 << 32
"""The first seed of training streams; lower seeds are for tests."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of the training. `ratio` is the mean over streams of the latency of `policy` divided by that of ETF."""

    number: int
    policy: LearnedRule
    ratio: float


def train(loads: Sequence[WorkflowStream], seed: int = 0, generations: int = 24) -> Iterator[Generation]:
    """Yield generations of weights; the last one is the result. The outcome depends only on the seed."""
    if not loads or generations < 1:
        raise InputError("the training", "at least one load and one generation")
    first = np.array([-1.0 if name == "finish" else 0.0 for name in WEIGHTS])

    def judge(number: int) -> Callable[[Weights], float]:
        streams = [(load, BASE + (seed % BASE) * BASE + number * STREAMS + n) for load in loads for n in range(STREAMS)]
        rivals = [load.under(Etf(), at).latency for load, at in streams]

        def ratio(weights: Weights) -> float:
            policy = policy_of(weights)
            found = [load.under(policy, at).latency / rival for (load, at), rival in zip(streams, rivals, strict=True)]
            return float(np.mean(found))

        return ratio

    for number, weights, ratio in search_weights(first, judge, seed, generations):
        yield Generation(number, policy_of(weights), ratio)


def policy_of(weights: np.ndarray) -> LearnedRule:
    """The learned order with these weights, rounded to four digits so that they can be written down."""
    return LearnedRule(**{name: round(float(value), 4) for name, value in zip(WEIGHTS, weights, strict=True)})
