"""Confidence intervals of small samples, for the mean by Student's t and for the median by signed ranks.

The samples are assumed to be independent. Sources: Student, "The probable error of a mean", Biometrika 6 (1908); F.
Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1 (1945); J. L. Hodges and E. L. Lehmann,
"Estimates of location based on rank tests", Annals of Mathematical Statistics 34 (1963).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the ends of its interval, and the number of samples. With one sample the ends are infinite."""

    mean: float
    low: float
    high: float
    samples: int

    @property
    def half(self) -> float:
        """Half the width: the error of the mean if the interval is symmetric."""
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float] | ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of independent `values` (at least one) and its two-sided interval by Student's t."""
    column = np.asarray(values, dtype=float)
    n, mean = len(column), float(column.mean())
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * _standard_error(column)
    return Interval(mean, mean - half, mean + half, n)


EXACT = 50
"""Number of samples up to which the signed-rank distribution is exact; beyond that a normal approximation is used."""


def middle_interval(values: Sequence[float] | ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the Hodges-Lehmann estimate of `values`, the median of all pairwise means, and its two-sided interval.

    The interval holds the values at which Wilcoxon's test finds the samples symmetric. It needs no normal distribution
    and is robust to a few outliers. Its ends are infinite if the samples are too few for the confidence.
    """
    column = np.asarray(values, dtype=float)
    n = len(column)
    first, second = np.triu_indices(n)
    means = np.sort((column[first] + column[second]) / 2)
    cut = _cut(n, (1 - confidence) / 2)
    low, high = (float(means[cut - 1]), float(means[len(means) - cut])) if cut else (-math.inf, math.inf)
    return Interval(float(np.median(means)), low, high, n)


@cache
def _cut(n: int, tail: float) -> int:
    """Return which of the sorted pairwise means, counted from 1, is the low end of the interval; 0: it is infinite."""
    if n > EXACT:
        wide = NormalDist().inv_cdf(1 - tail) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(math.floor(n * (n + 1) / 4 - wide), 0)
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0  # by rank sum: its share of all choices of signs
    for rank in range(1, n + 1):
        ways[rank:] = (ways[rank:] + ways[:-rank]) / 2
        ways[:rank] /= 2
    return int(np.searchsorted(np.cumsum(ways), tail * (1 + 1e-12), side="right"))


def _standard_error(column: np.ndarray) -> float:
    return float(column.std(ddof=1)) / math.sqrt(len(column))


@cache
def t_quantile(p: float, df: int) -> float:
    """Return the p-quantile (0 < p < 1) of Student's t with `df` degrees of freedom, to about ten digits."""
    if p < 0.5:
        return -t_quantile(1 - p, df)
    high = 1.0
    while t_below(high, df) < p and high < 1e300:
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, df) < p else (low, middle)
    return (low + high) / 2


def t_below(t: float, df: int) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is at most `t`."""
    tail = _beta_part(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def _beta_part(x: float, rest: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), with `rest` = 1 - x, exact where x is near 1.

    Source: Abramowitz and Stegun, 26.5.8 and 6.6.2.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly below this, and I_x(a, b) = 1 - I_{1-x}(b, a)
        return 1 - front * _fraction(rest, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or tiny)
    value = d
    for m in range(1, 500):
        for part in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + part * d) or tiny)
            c = (1 + part / c) or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
