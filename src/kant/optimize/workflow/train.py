"""Train the learned order on streams by the cross-entropy method: draw weights, keep the best, draw around them.

Source: R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization", Methodology and
Computing in Applied Probability 1, 1999. It starts at ETF, so that it need not find that rule again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from kant.model.errors import InputError
from kant.optimize.workflow.load import Load
from kant.optimize.workflow.policies.etf import Etf
from kant.optimize.workflow.policies.learned import Learned

WEIGHTS = tuple(field.name for field in fields(Learned))

DRAWN, KEPT = 32, 8
"""Weights that a generation draws, and how many of them the next is drawn around."""
STREAMS = 4
"""Streams of each load that a generation is judged by: the same for all of it, new for the next."""
WIDTH, WIDENED, PACE = 0.5, 0.02, 0.7
"""The first standard deviation, what is added to it, and how far a generation moves."""
BASE = 1 << 32
"""Training draws its streams by seeds from here on; those below it are for tests."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of the training. `ratio` is the mean latency of `policy` over ETF's on this generation's streams."""

    number: int
    policy: Learned
    ratio: float


def train(loads: Sequence[Load], seed: int = 0, generations: int = 24) -> Iterator[Generation]:
    """Generations of weights, one after the other; the last is the result. Nothing but the seed decides."""
    if not loads or generations < 1:
        raise InputError("the training", "at least one load and one generation")
    rng = np.random.Generator(np.random.PCG64(seed))
    mean = np.array([-1.0 if name == "finish" else 0.0 for name in WEIGHTS])
    width = np.full(len(WEIGHTS), WIDTH)
    for number in range(generations):
        streams = [(load, BASE + (seed % BASE) * BASE + number * STREAMS + n) for load in loads for n in range(STREAMS)]
        rivals = [load.under(Etf(), at).latency for load, at in streams]

        def ratio(
            weights: np.ndarray,
            streams: list[tuple[Load, int]] = streams,
            rivals: list[float] = rivals,
        ) -> float:
            policy = policy_of(weights)
            return float(
                np.mean(
                    [load.under(policy, at).latency / rival for (load, at), rival in zip(streams, rivals, strict=True)]
                )
            )

        drawn = mean + width * rng.standard_normal((DRAWN, len(WEIGHTS)))
        drawn[0] = mean
        ratios = [ratio(weights) for weights in drawn]
        best = drawn[np.argsort(ratios, kind="stable")[:KEPT]]
        mean = (1 - PACE) * mean + PACE * best.mean(axis=0)
        width = (1 - PACE) * width + PACE * best.std(axis=0) + WIDENED
        yield Generation(number, policy_of(mean), ratio(mean))


def policy_of(weights: np.ndarray) -> Learned:
    """The learned order with these weights, rounded to four digits so that they can be written down."""
    return Learned(**{name: round(float(value), 4) for name, value in zip(WEIGHTS, weights, strict=True)})
