"""When sessions arrive: a Gamma renewal process whose rate depends on the hour, the weekday and slow noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from kant.workload.generate.law import Floats
from kant.workload.generate.row import ClusterStatistics

HOUR_S = 3600.0


def hourly_rate(rng: Generator, row: ClusterStatistics, hours: int) -> Floats:
    """Return the relative rate of each hour: hour of day x weekday x noise with a mean of one.

    The noise is exp(x), where x is an AR(1) process with the row's deviation and hourly correlation.
    """
    hour = np.arange(hours)
    steps = rng.normal(size=hours) * (row.noise * math.sqrt(1 - row.memory**2))
    noise = np.empty(hours)
    level = rng.normal() * row.noise
    for i, step in enumerate(steps.tolist()):
        noise[i] = level
        level = row.memory * level + step
    factor = np.exp(noise - row.noise**2 / 2)
    rate: Floats = np.array(row.hours)[hour % 24] * np.array(row.weekdays)[hour // 24 % 7] * factor
    return rate


def session_starts(rng: Generator, row: ClusterStatistics, sessions: int, span_s: float) -> Floats:
    """Return `sessions` sorted times t in seconds, with 0 <= t < `span_s`.

    Gaps are Gamma in operational time (the integral of the rate), scaled to fill the span. So arrivals are burstier
    than a Poisson process within an hour, and follow the bursts of the rate over hours.
    """
    hours = math.ceil(span_s / HOUR_S)
    rate = hourly_rate(rng, row, hours)
    ends = np.minimum(np.arange(hours + 1) * HOUR_S, span_s)
    done = np.concatenate(([0.0], np.cumsum(rate * np.diff(ends))))
    gaps = rng.gamma(row.gap, size=sessions + 1)
    gaps[0] *= rng.random()
    passed = np.cumsum(gaps)
    starts: Floats = np.interp(passed[:-1] / passed[-1] * done[-1], done, ends)
    return starts


def session_sizes(rng: Generator, row: ClusterStatistics, jobs: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of identical jobs of each session. The last number is cut so that the sum is exactly `jobs`."""
    weights = np.array(row.sessions) / sum(row.sessions)
    drawn = rng.choice(len(weights), size=jobs, p=weights) + 1
    passed = np.cumsum(drawn)
    count = int(np.searchsorted(passed, jobs)) + 1
    drawn = drawn[:count]
    drawn[-1] -= passed[count - 1] - jobs
    return drawn.astype(np.int64)
