"""Fits costs to measurements: seconds as a linear function of units, for each operation and domain, by least squares.

FSMoE profiles a cluster with 24 message sizes and 12 GEMM sizes, five runs each (Pan et al., ASPLOS 2025, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kant.placement.perf.layer import CONTENTION, Cost
from kant.placement.perf.streams import Floats


class Sample(NamedTuple):
    """An operation of `size` bytes or multiply-adds took `seconds`. `beside`: the other message stream was busy too."""

    operation: str
    place: str
    size: float
    seconds: float
    beside: bool = False


class FittedCost(NamedTuple):
    """A cost fitted to `samples` samples; `r2` is the share of their variance that it explains."""

    operation: str
    place: str
    cost: Cost
    samples: int
    r2: float


class Fit(NamedTuple):
    """The fitted costs, and the contention, fitted to `beside` samples (if 0: the default, from FSMoE's table 5)."""

    lines: tuple[FittedCost, ...]
    contention: float
    beside: int


def fit(samples: Iterable[Sample]) -> Fit:
    """Fit lines to all operations and places that were measured alone, and the contention to the other samples.

    Fitted start-up and unit costs are never negative. Samples of operations that were never measured alone are ignored.
    """
    kinds: dict[tuple[str, str], list[Sample]] = {}
    rest = []
    for sample in samples:
        if sample.beside:
            rest.append(sample)
        else:
            kinds.setdefault((sample.operation, sample.place), []).append(sample)
    lines = tuple(_line(operation, place, kinds[operation, place]) for operation, place in sorted(kinds))
    costs = {(line.operation, line.place): line.cost for line in lines}
    pairs = [
        (costs[s.operation, s.place].of(s.size), s.seconds) for s in rest if (s.operation, s.place) in costs
    ]  # fmt: skip
    if not pairs:
        return Fit(lines, CONTENTION, 0)
    alone, met = np.array(pairs).T
    contention = float((alone * met).sum() / (met * met).sum())
    return Fit(lines, min(max(contention, 0.01), 1.0), len(pairs))


def _line(operation: str, place: str, samples: Sequence[Sample]) -> FittedCost:
    size: Floats = np.array([sample.size for sample in samples])
    seconds: Floats = np.array([sample.seconds for sample in samples])
    wide = float(((size - size.mean()) ** 2).sum())
    beta = float(((size - size.mean()) * (seconds - seconds.mean())).sum()) / wide if wide > 0 else 0.0
    alpha = float(seconds.mean() - beta * size.mean())
    if beta < 0:
        alpha, beta = float(seconds.mean()), 0.0
    elif alpha < 0:
        alpha, beta = 0.0, float((size * seconds).sum() / (size * size).sum())
    off = float(((seconds - alpha - beta * size) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return FittedCost(operation, place, Cost(alpha, beta), len(samples), 1.0 - off / spread if spread > 0 else 1.0)
