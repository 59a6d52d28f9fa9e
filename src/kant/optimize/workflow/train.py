"""Train the learned order on streams. The initial weights are those of ETF, so that rule need not be found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from kant.model.errors import InputError
from kant.optimize.cross_entropy import Weights, search_weights
from kant.optimize.workflow.load import Load
from kant.optimize.workflow.policies.etf import Etf
from kant.optimize.workflow.policies.learned import Learned

WEIGHTS = tuple(field.name for field in fields(Learned))

STREAMS = 4
"""Streams of each load that judge a generation: the same for all its weights, new for the next generation."""
BASE = 1 << 32
"""The first seed of training streams; lower seeds are for tests."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of the training. `ratio` is the mean latency of `policy` over ETF's on this generation's streams."""

    number: int
    policy: Learned
    ratio: float


def train(loads: Sequence[Load], seed: int = 0, generations: int = 24) -> Iterator[Generation]:
    """Yield generations of weights; the last is the result. The outcome depends only on the seed."""
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


def policy_of(weights: np.ndarray) -> Learned:
    """The learned order with these weights, rounded to four digits so that they can be written down."""
    return Learned(**{name: round(float(value), 4) for name, value in zip(WEIGHTS, weights, strict=True)})
