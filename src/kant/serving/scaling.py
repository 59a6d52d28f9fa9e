"""How many replicas a service should have now: by a forecast and the engine's capacity, or by simpler rules.

A scaler is asked every `every_s` and says a number; what is asked for goes through the cluster's queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kant.serving.capacity import CapacityCurve
from kant.serving.columns import Times
from kant.serving.forecast import Forecast


class Scaler(Protocol):
    """Says how many replicas there should be."""

    @property
    def every_s(self) -> int:
        """Seconds from one question to the next; whole minutes."""
        ...

    def wanted(self, now: int, count: int) -> int:
        """The replicas to have from minute `now` on, where there are `count`; it has seen the minutes before."""
        ...


@dataclass(frozen=True, slots=True)
class Foresight:
    """As many as bear what is forecast until those that are asked for next time would serve.

    A replica is given back only where it is not needed within `hold_s` either, since it would have to start again.
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


@dataclass(frozen=True, slots=True)
class Utilisation:
    """As many as have the utilisation `target`, as Kubernetes' horizontal autoscaler keeps it.

    The utilisation is the rate of the last minute over what the replicas bear (`each` of them). Within a tenth of the
    target nothing is done; a replica is given back where it was not wanted in five minutes (both its defaults).
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
    """Always the same number: provisioned for a peak."""

    replicas: int
    every_s: int = 3600

    def wanted(self, now: int, count: int) -> int:
        return self.replicas
