"""What it costs to stop one replica of a service now, in the unit in which preemption counts lost work."""

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
"""What comes, over what those bear who are left: where the cost is measured."""

REPLICAS = 4
"""With so many it is measured, one of them away."""

SECONDS = 300
"""For so long."""


@dataclass(frozen=True, slots=True)
class LateShares:
    """Which share of the requests is late while one replica is away, by the load of the others; a line between."""

    loads: tuple[float, ...]
    shares: tuple[float, ...]

    def at(self, load: float) -> float:
        """Below the loads that were measured it falls to nothing at half of the lowest."""
        loads, shares = (self.loads[0] / 2, *self.loads), (0.0, *self.shares)
        return float(np.interp(load, loads, shares))


def late_shares(service: Service, curve: CapacityCurve, seed: int = 0) -> LateShares:
    """Measure it on the simulated engine (`kant.serving.removal`); more load never makes fewer late."""
    shares = []
    for load in LOADS:
        rate = load * curve.at(REPLICAS - 1)
        found = removal(service, REPLICAS, rate, SECONDS, seed)
        shares.append(min(max(found.late / (rate * SECONDS), 0.0), 1.0))
    return LateShares(LOADS, tuple(np.maximum.accumulate(shares).tolist()))


@dataclass(frozen=True, slots=True)
class RemovalPrice:
    """The price of one of `n` replicas while `rate` requests a second come, until another could serve in its place.

    That is `away_s` seconds. A request that is late counts as the GPU time that a request takes at capacity: it is
    thrown away, as is the work of a training job since its last checkpoint.
    """

    shares: LateShares
    curve: CapacityCurve
    gpus: int
    away_s: float

    def at(self, n: int, rate: float) -> int:
        """Milli-GPU-seconds."""
        left = self.curve.at(n - 1)
        share = self.shares.at(rate / left) if left > 0 else 1.0
        gpu_s = self.gpus * n / self.curve.at(n)
        return math.ceil(share * rate * self.away_s * gpu_s * GPU)


def prices(price: Callable[[int, float], int], replicas: int, bursts: int, rate: float) -> list[int]:
    """What each of some bursts costs, the cheapest first: the second to go leaves fewer behind than the first did."""
    return np.maximum.accumulate([price(replicas - k, rate) for k in range(bursts)]).tolist() if bursts else []
