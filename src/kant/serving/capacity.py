"""The capacity of a service: the highest rate (requests a second) that n replicas serve within its objectives."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kant.model.errors import InputError
from kant.serving.requests import Requests
from kant.serving.service import IN_TIME, MINUTE_S, Service, kept_minutes, late

PRECISION = 0.01
"""The search ends when the rate is known with this relative precision."""

STEP = 0.9
"""The factor by which the rate is lowered until the objectives are met."""

LOWEST = 1e-3
"""The search ends at this fraction of the engines' saturation rate."""

MINUTES = 10
"""The minimum length of a trial, in minutes."""

CLOSER = 0.97
"""The factor by which the rate is lowered until a long trial confirms it."""

SATURATING = 512
"""This number of concurrent requests saturates one engine."""


@dataclass(frozen=True, slots=True)
class LoadTrial:
    """The result of a run at one rate: its minutes and requests, and in how many minutes the objectives were met."""

    minutes: int
    kept: int
    requests: int
    ttft_p99_s: float
    tpot_p99_s: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate found for a number of replicas, in requests a second, and the run at that rate."""

    replicas: int
    rate: float
    trial: LoadTrial


def trial(service: Service, requests: Requests, replicas: int, minutes: int, seed: int = 0) -> LoadTrial:
    """Serve requests from time 0. Evaluate `minutes` after the first minute, in which the engines fill."""
    served = service.serve(requests, replicas, seed)
    kept = kept_minutes(requests.arrival, *late(served, service.objectives), range(1, minutes + 1))
    each = (served.finish - served.first) / np.maximum(requests.output - 1, 1)
    wait = served.first - requests.arrival
    return LoadTrial(
        minutes, int(kept.sum()), len(requests), float(np.quantile(wait, 0.99)), float(np.quantile(each, 0.99))
    )


def saturation(service: Service, seed: int = 0) -> float:
    """Return the requests a second that one saturated engine completes."""
    requests = service.mix.requests(SATURATING, 1e9, seed)
    served = service.serve(requests, 1, seed)
    return SATURATING / float(served.finish.max())


def capacity(
    service: Service,
    replicas: int,
    requests: int = 12_000,
    share: float = 0.995,
    seed: int = 0,
    minutes: int = MINUTES,
) -> Capacity:
    """Return the highest rate at which `replicas` engines meet the objectives in at least `share` of the minutes.

    Each trial has about `requests` requests, and lasts at least ten minutes; a higher rate compresses the same
    requests. The search starts at rates that are too high and lowers them, since objectives are strict in minutes with
    few requests: below a hundred, no request may be late. With more `minutes`, the rate is lowered until that many
    minutes confirm it. Raises InputError if even single requests on an engine miss the objectives.
    """
    if not 1 <= replicas <= 10_000:
        raise InputError("--replicas", "numbers from 1 to 10000", replicas)
    if not 1 <= requests <= 100_000_000:
        raise InputError("--requests", "a number of requests from 1 on", requests)
    if not 0 < share <= 1:
        raise InputError("--share", "a share above 0, at most 1", share)
    if not 1 <= minutes <= 1_000_000:
        raise InputError("--minutes", "a number of minutes from 1 on", minutes)
    check_alone(service, seed)
    guess = replicas * saturation(service, seed)

    def tried(rate: float, least: int = MINUTES) -> LoadTrial | None:
        long = max(least, round(requests / rate / MINUTE_S))
        found = trial(service, service.mix.during((long + 1) * MINUTE_S, rate, seed), replicas, long, seed)
        return found if found.kept >= share * long else None

    low, high = 0.0, guess
    best = None
    while (found := tried(high)) is not None:
        low, best, high = high, found, high / STEP
    while best is None:
        low = high * STEP
        if low < LOWEST * guess:
            raise InputError("objectives", f"latencies that {replicas} replicas meet at 1/1000 of their highest rate")
        best = tried(low)
        high = high if best else low
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        found = tried(middle)
        low, high, best = (middle, high, found) if found else (low, middle, best)
    while best is None or best.minutes < minutes:
        best = tried(low, minutes)
        if best is None:
            low *= CLOSER
    return Capacity(replicas, low, best)


def check_alone(service: Service, seed: int = 0) -> None:
    """Raise InputError if more than 1 % of requests that run alone on an engine miss an objective."""
    requests = service.mix.requests(SATURATING, 1e-4, seed)
    served = service.serve(requests, 1, seed)
    for name, rows, value in zip(
        ("--ttft", "--tpot"), late(served, service.objectives), (service.objectives.ttft_s, service.objectives.tpot_s),
        strict=True,
    ):  # fmt: skip
        if rows.mean() > (100 - IN_TIME) / 100:
            raise InputError(name, "an objective that a request alone on an engine meets", f"{value:g} s")


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Capacity by number of replicas: measured at some numbers, the first of them 1, and interpolated linearly.

    Capacity never falls when replicas are added. Beyond the largest measured number, each further replica adds the mean
    capacity per replica at that number.
    """

    replicas: tuple[int, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(np.maximum.accumulate(self.rates).tolist()))

    def at(self, replicas: int) -> float:
        """Return the capacity of a number of replicas in requests a second."""
        last = self.replicas[-1]
        if replicas >= last:
            return self.rates[-1] * (replicas / last)  # so that rounding never makes it fall
        return float(np.interp(replicas, (0, *self.replicas), (0.0, *self.rates)))

    def needed(self, rate: float) -> int:
        """Return the fewest replicas with this capacity; 0 for rate 0."""
        most = math.ceil(rate / self.rates[-1] * self.replicas[-1]) + 1
        most = max(most, self.replicas[-1])
        return bisect_left(range(most), rate, key=self.at)


def capacity_curve(
    service: Service,
    replicas: Sequence[int] = (1, 2, 4),
    requests: int = 12_000,
    share: float = 0.995,
    seed: int = 0,
    minutes: int = MINUTES,
) -> CapacityCurve:
    """Measure the capacity at some numbers of replicas. Raises InputError unless they begin with 1 and increase."""
    if not replicas or replicas[0] != 1 or any(a >= b for a, b in pairwise(replicas)):
        raise InputError("--replicas", "rising numbers that begin with 1", ",".join(map(str, replicas)))
    found = [capacity(service, n, requests, share, seed, minutes).rate for n in replicas]
    return CapacityCurve(tuple(replicas), tuple(found))
