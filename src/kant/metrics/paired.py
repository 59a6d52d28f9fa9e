"""What a few pairs of figures say: Student's t, intervals of a mean, and of the ratio of two means.

A pair is one figure of two schedulers on the same sample: the same jobs and the same seed. The samples are taken to be
independent of each other. Source: Student, "The probable error of a mean", Biometrika 6 (1908), and E. C. Fieller,
"Some problems in interval estimation", J. Royal Statistical Society B 16 (1954), for the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

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
        """By how much the mean may be off, where the interval is symmetric."""
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float] | ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """The mean of independent `values` (at least one) and its two-sided interval by Student's t."""
    column = np.asarray(values, dtype=float)
    n, mean = len(column), float(column.mean())
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * _standard_error(column)
    return Interval(mean, mean - half, mean + half, n)


def t_of(values: Sequence[float] | ArrayLike) -> float:
    """Student's t of the mean of at least two values against 0; infinite where they are all alike and not 0."""
    column = np.asarray(values, dtype=float)
    mean, error = float(column.mean()), _standard_error(column)
    if error == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / error


def ratio_interval(above: ArrayLike, below: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """The ratio of the means of `above` and `below`, which are pairs, and its two-sided interval after Fieller.

    The interval holds the ratios r for which `above - r below` has a mean that Student's t cannot tell from 0. Its ends
    are infinite where the mean of `below` cannot be told from 0 itself; its mean is not a number where that is 0.
    """
    a, b = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    n, mean_a, mean_b = len(a), float(a.mean()), float(b.mean())
    ratio = mean_a / mean_b if mean_b else math.nan
    if n < 2:
        return Interval(ratio, -math.inf, math.inf, n)
    k = t_quantile((1 + confidence) / 2, n - 1) ** 2 / n
    spread = np.cov(a, b, ddof=1)
    square = mean_b**2 - k * spread[1, 1]
    if square <= 0:
        return Interval(ratio, -math.inf, math.inf, n)
    middle = mean_a * mean_b - k * spread[0, 1]
    root = math.sqrt(max(middle**2 - square * (mean_a**2 - k * spread[0, 0]), 0.0))
    return Interval(ratio, (middle - root) / square, (middle + root) / square, n)


def _standard_error(column: np.ndarray) -> float:
    return float(column.std(ddof=1)) / math.sqrt(len(column))


@cache
def t_quantile(p: float, df: int) -> float:
    """The p-quantile (0 < p < 1) of Student's t with `df` degrees of freedom, to about ten digits."""
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
    """The probability that Student's t with `df` degrees of freedom is at most `t`."""
    tail = _beta_part(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def _beta_part(x: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), with `rest` = 1 - x, exact where x is near 1.

    Source: Abramowitz and Stegun, 26.5.8 and 6.6.2.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x > (a + 1) / (a + b + 2):  # the fraction is quick below this, and I_x(a, b) = 1 - I_{1-x}(b, a)
        return 1 - front * _fraction(rest, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
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
