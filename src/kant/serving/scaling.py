"""Scalers: how many replicas a service should have, by a forecast and the capacity of replicas, or by simpler rules.

A scaler is asked every `every_s` and returns a number; replicas are then requested through the cluster's queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kant.serving.capacity import CapacityCurve
from kant.serving.columns import Times
from kant.serving.forecast import Forecast, Seen


class Scaler(Protocol):
    """Decides the number of replicas."""

    @property
    def every_s(self) -> int:
        """Seconds between two calls; whole minutes."""
        ...

    def wanted(self, now: int, count: int) -> int:
        """Return the number of replicas from minute `now` on, given `count` replicas and the traffic before `now`."""
        ...


@dataclass(frozen=True, slots=True)
class Foresight:
    """As many replicas as the forecast needs until replicas requested at the next call could serve.

    A replica is released only if it is not needed within `hold_s` seconds either, since it would have to start again.
    After an `overrun`, `wanted` is called early.
    """

    curve: CapacityCurve
    forecast: Forecast
    start_s: int = 120
    every_s: int = 300
    hold_s: int = 900

    def wanted(self, now: int, count: int) -> int:
        soon = now + math.ceil((self.start_s + self.every_s) / 60)
        least = self.curve.needed(self.forecast.most(now, now, soon))
        most = self.curve.needed(self.forecast.most(now, now, max(soon, now + math.ceil(self.hold_s / 60))))
        return min(max(count, least), most)

    def overrun(self, now: int, count: int) -> bool:
        """Whether more requests came in the last minute than `count` replicas can serve, so that waiting for the next
        call would be too late.
        """
        return isinstance(self.forecast, Seen) and self.curve.needed(self.forecast.latest(now)) > count


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The replicas that keep the utilisation at `target`, like Kubernetes' horizontal autoscaler.

    The utilisation is the rate of the last minute over the capacity of the replicas (`each`). Within 10 % of the target
    nothing changes; a replica is released if it was not wanted for five minutes (both as Kubernetes does by default).
    """

    each: float
    seen: Times
    target: float = 0.7
    every_s: int = 60
    stable_s: int = 300

    def wanted(self, now: int, count: int) -> int:
        asked = [self._desired(at, count) for at in range(max(now - self.stable_s // 60 + 1, 0), now + 1)]
        return max(asked) if max(asked) < count else max(asked[-1], count)

    def _desired(self, now: int, count: int) -> int:
        rate = float(self.seen[now - 1]) if now else 0.0
        ratio = rate / (max(count, 1) * self.each * self.target)
        return count if abs(ratio - 1) <= 0.1 or now == 0 else math.ceil(max(count, 1) * ratio)


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same number of replicas, provisioned for a peak."""

    replicas: int
    every_s: int = 3600

    def wanted(self, now: int, count: int) -> int:
        return self.replicas
