"""A learning-rate law, fitted to measured training runs.

A *cell* is a batch size and a number of tokens. Its best rate is the minimum of a parabola, which is fitted to the
losses of the best measured rate and its neighbours over the logarithm of the rate. The law is the plane through these
minima, by least squares. Source: Power Scheduler (arXiv 2408.13359), which fixes the batch's exponent to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kant.metrics.paired import t_quantile
from kant.model.elastic import RateLaw
from kant.model.errors import InputError

Cell = tuple[int, float]
"""A batch in samples, and the total number of tokens of a run."""
Losses = Mapping[Cell, Mapping[float, float]]
"""The loss at the end of a run, by cell and by learning rate."""


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A `law` of the rate by number of tokens, the half widths of the 95 % intervals of its exponents by Student's t,
    and in each cell the best rate and its loss. `at_edge`: cells whose best rate is the smallest or largest measured.
    """

    law: RateLaw
    batch_half: float
    token_half: float
    best: dict[Cell, tuple[float, float]]
    at_edge: tuple[Cell, ...]


def cells_of(rows: Sequence[tuple[int, float, float, float]]) -> dict[Cell, dict[float, float]]:
    """Return the mean loss by cell and rate from rows of batch, tokens, rate and loss."""
    found: dict[Cell, dict[float, list[float]]] = {}
    for batch, tokens, rate, loss in rows:
        found.setdefault((batch, tokens), {}).setdefault(rate, []).append(loss)
    return {cell: {rate: float(np.mean(each)) for rate, each in by.items()} for cell, by in found.items()}


def best_of(losses: Mapping[float, float]) -> tuple[float, float, bool]:
    """Return the best rate, its loss, and whether it is the smallest or the largest of the rates."""
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda each: losses[rates[each]])
    if at in (0, len(rates) - 1):
        return rates[at], losses[rates[at]], True
    x, y = np.log(rates[at - 1 : at + 2]), [losses[rate] for rate in rates[at - 1 : at + 2]]
    a, b, c = np.polyfit(x - x[1], y, 2)  # a > 0: the middle loss is the least
    top = float(np.clip(-b / (2 * a), x[0] - x[1], x[2] - x[1])) if a > 0 else 0.0
    return float(np.exp(x[1] + top)), float(np.polyval([a, b, c], top)), False


def fit(losses: Losses, tail: float = 0.1) -> FittedLaw:
    """Fit the law to runs whose `tail` (a fraction of their tokens) lowers the rate; it gives the rate before the tail.

    Raises InputError for less than two batches and two numbers of tokens, or fewer than four cells.
    """
    if len({batch for batch, _ in losses}) < 2 or len({tokens for _, tokens in losses}) < 2 or len(losses) < 4:
        raise InputError("the rows", "two batches and two numbers of tokens at least, in four cells or more")
    if any(len(rates) < 3 for rates in losses.values()):
        few = next(cell for cell, rates in losses.items() if len(rates) < 3)
        raise InputError("the rows", f"three rates at least for batch {few[0]:,} and {few[1]:,.0f} tokens")
    tops = {cell: best_of(rates) for cell, rates in losses.items()}
    x = np.array([(1.0, np.log(batch), np.log(tokens * (1 - tail))) for batch, tokens in losses])
    y = np.log([tops[cell][0] for cell in losses])
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    degrees = max(len(losses) - 3, 1)
    variance = np.sum((y - x @ found) ** 2) / degrees * np.linalg.pinv(x.T @ x).diagonal()
    half = t_quantile(0.975, degrees) * np.sqrt(variance)
    amplitude, batch_power, token_power = float(np.exp(found[0])), float(found[1]), float(found[2])
    peak = max(rate for rates in losses.values() for rate in rates)
    law = RateLaw(amplitude, batch_power, token_power, peak)
    edge = tuple(cell for cell, top in tops.items() if top[2])
    return FittedLaw(law, float(half[1]), float(half[2]), {cell: top[:2] for cell, top in tops.items()}, edge)


def loss_at(losses: Mapping[float, float], rate: float) -> float:
    """Return the interpolated loss of a run at this rate; beyond the measured rates, the loss at the nearest one."""
    rates = sorted(losses)
    return float(np.interp(np.log(rate), np.log(rates), [losses[each] for each in rates]))


def regret(losses: Losses, fitted: FittedLaw, rate: Mapping[Cell, float]) -> dict[Cell, float]:
    """Return how much the loss at each cell's rate exceeds the best loss of the cell."""
    return {cell: loss_at(losses[cell], rate[cell]) - fitted.best[cell][1] for cell in losses}
