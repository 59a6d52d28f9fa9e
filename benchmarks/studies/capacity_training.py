"""Train the learned order of insertion on generated instances. The initial order is most work first, a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kant.model.errors import InputError
from kant.optimize.capacity.generate import generate
from kant.optimize.capacity.learned import LearnedInsertion
from kant.optimize.capacity.planning import Planning, planning_of
from kant.optimize.capacity.solve import insert_best
from kant.optimize.workflow.train import Weights, search_weights

WEIGHTS = tuple(field.name for field in fields(LearnedInsertion))
FIRST = tuple(1.0 if name == "work" else 0.0 for name in WEIGHTS)

INSTANCES = 12
"""Instances of each size that judge a generation: the same for all its weights, new for the next generation."""
BASE = 1 << 32
"""The first seed of training instances; lower seeds are for tests."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One step of the training. `ratio` is the mean cost of `order` over that of the best fixed order."""

    number: int
    order: LearnedInsertion
    ratio: float


def train(sizes: Sequence[int], seed: int = 0, generations: int = 24, resources: int = 4) -> Iterator[Generation]:
    """Yield generations of weights; the last is the result. The outcome depends only on the seed.

    `sizes` are numbers of tasks. Raises InputError if there is none, or no generation.
    """
    if not sizes or generations < 1:
        raise InputError("the training", "at least one size and one generation")

    def judge(number: int) -> Callable[[Weights], float]:
        seeds = [BASE + (seed % BASE) * BASE + number * INSTANCES + n for n in range(INSTANCES)]
        empty = [planning_of(generate(size, resources, at)) for size in sizes for at in seeds]
        rivals = [cost_by(insert_best, planning) for planning in empty]

        def ratio(weights: Weights) -> float:
            order = order_of(weights)
            costs = [cost_by(order.insert, planning) for planning in empty]
            return float(np.mean([cost / max(rival, 1) for cost, rival in zip(costs, rivals, strict=True)]))

        return ratio

    for number, weights, ratio in search_weights(np.array(FIRST), judge, seed, generations):
        yield Generation(number, order_of(weights), ratio)


def cost_by(insert: Callable[[Planning], None], empty: Planning) -> int:
    """The cost of an empty plan after insertion; the plan itself stays empty."""
    planning = replace(empty, starts=empty.starts.copy(), usage=empty.usage.copy())
    insert(planning)
    return planning.cost


def order_of(weights: Weights) -> LearnedInsertion:
    """The learned order with these weights, rounded to four digits so that they can be written down."""
    return LearnedInsertion(**{name: round(float(value), 4) for name, value in zip(WEIGHTS, weights, strict=True)})
