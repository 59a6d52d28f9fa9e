"""Training by the cross-entropy method: draw weights, keep the best, draw around them.

Source: R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization", Methodology and
Computing in Applied Probability 1, 1999.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float64]

DRAWN, KEPT = 32, 8
"""The number of weights that a generation draws, and how many of them the next is drawn around."""
WIDTH, WIDENED, PACE = 0.5, 0.02, 0.7
"""The first standard deviation, what is added to it, and the step size of a generation."""


def search_weights(
    first: Weights, judge: Callable[[int], Callable[[Weights], float]], seed: int, generations: int
) -> Iterator[tuple[int, Weights, float]]:
    """Yield the number, the mean weights and their cost, by generation, starting from `first`.

    `judge` returns the cost function of a generation: lower is better. The outcome depends only on the seed.
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
