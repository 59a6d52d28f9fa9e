"""The cost of stopping a replica of a service now, in the unit in which preemption counts lost work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kant.model.units import GPU
from kant.serving.capacity import CapacityCurve
from kant.serving.removal import removal
from kant.serving.service import Service

LOADS = (0.7, 0.85, 1.0, 1.15, 1.3, 1.6)
"""The loads at which the cost is measured. A load is the request rate over the capacity of the remaining replicas."""

REPLICAS = 4
"""The number of replicas in the measurement. One of them is absent."""

SECONDS = 300
"""Seconds of the absence."""


@dataclass(frozen=True, slots=True)
class LateShares:
    """The share of late requests while one replica is away, by the load on the others; interpolated linearly."""

    loads: tuple[float, ...]
    shares: tuple[float, ...]

    def at(self, load: float) -> float:
        """Return the share at a load. Below the measured loads it falls linearly, to 0 at half of the lowest."""
        loads, shares = (self.loads[0] / 2, *self.loads), (0.0, *self.shares)
        return float(np.interp(load, loads, shares))


def late_shares(service: Service, curve: CapacityCurve, seed: int = 0) -> LateShares:
    """Measure the shares on the simulated engine (`kant.serving.removal`); they never fall with load."""
    shares = []
    for load in LOADS:
        rate = load * curve.at(REPLICAS - 1)
        found = removal(service, REPLICAS, rate, SECONDS, seed)
        shares.append(min(max(found.late / (rate * SECONDS), 0.0), 1.0))
    return LateShares(LOADS, tuple(np.maximum.accumulate(shares).tolist()))


@dataclass(frozen=True, slots=True)
class RemovalPrice:
    """The price of losing one of `n` replicas at `rate` requests a second, until another replica serves instead.

    That takes `away_s` seconds. A late request counts as the GPU time that a request takes at capacity, since this time
    is wasted, like the work of a training job since its last checkpoint.
    """

    shares: LateShares
    curve: CapacityCurve
    gpus: int
    away_s: float

    def at(self, n: int, rate: float) -> int:
        """Return the price in milli-GPU-seconds."""
        left = self.curve.at(n - 1)
        share = self.shares.at(rate / left) if left > 0 else 1.0
        gpu_s = self.gpus * n / self.curve.at(n)
        return math.ceil(share * rate * self.away_s * gpu_s * GPU)


def prices(price: Callable[[int, float], int], replicas: int, bursts: int, rate: float) -> list[int]:
    """Return the price of each burst replica, the cheapest first. With each removal fewer replicas are left."""
    return np.maximum.accumulate([price(replicas - k, rate) for k in range(bursts)]).tolist() if bursts else []
