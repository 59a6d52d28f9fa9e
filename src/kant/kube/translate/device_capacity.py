"""Consumable capacity: how much of a shared device each claim uses (KEP-5075).

Amounts are billionths, so that they add up exactly. A request uses the amount of a capacity that it states, rounded up
as the device says. If it states none, it uses the default, and without a default the whole capacity.

Source: k8s.io/dynamic-resource-allocation, structured/internal/incubating (consumable_capacity.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kant.kube.objects import device_views as d
from kant.kube.objects.quantity import exact
from kant.model.units import GPU

NANO = 10**9
MANY = 1 << 20
"""The number of requests that may share a device without capacities. It is so large that it means unlimited."""

Taken = Mapping[str, int]
"""Used amounts by the name of the capacity, in billionths."""


class Limit(NamedTuple):
    """A capacity of a device in billionths: its total, and the amounts that a request may use. -1: unspecified."""

    value: int
    default: int = -1
    values: tuple[int, ...] = ()
    least: int = -1
    most: int = -1
    step: int = 0

    def taken(self, asked: int | None) -> int:
        """Return how much a request for `asked` (None: unspecified) uses; -1 if the request cannot be met."""
        if asked is None:
            return self.default if self.default >= 0 else self.value
        if self.values:
            return next((one for one in self.values if one >= asked), -1)
        taken = max(asked, self.least)
        if self.step and taken > self.least:
            taken += -(taken - self.least) % self.step
        return -1 if 0 <= self.most < taken or taken > self.value else taken


def billionths(amount: d.Amount, where: str) -> int:
    """Return an amount in billionths, rounded up. Raises InputError if it is not a quantity."""
    return -int(-exact(amount, where) * NANO // 1)


def limits_of(device: d.Device) -> dict[str, Limit]:
    """Return the capacities of a device, by name. Raises InputError if an amount is not a quantity."""
    found = {}
    for name, amount in device.capacity.items():
        where, policy = f"capacity {name} of device {device.name}", amount.request_policy
        found[name] = Limit(billionths(amount.value, where))
        if policy is not None:
            span = policy.valid_range or d.RequestRange()
            bounds = (policy.default, span.min, span.max, span.step)
            default, least, most, step = (-1 if one is None else billionths(one, where) for one in bounds)
            values = tuple(billionths(one, where) for one in policy.valid_values)
            found[name] = Limit(found[name].value, default, values, least, most, max(step, 0))
    return found


def taken_of(asked: Taken, limits: Mapping[str, Limit]) -> dict[str, int] | None:
    """Return how much a request uses of a device, by capacity. None if even an unused device could not serve it."""
    if not asked.keys() <= limits.keys():
        return None
    taken = {name: limit.taken(asked.get(name)) for name, limit in limits.items()}
    return None if any(not 0 <= taken[name] <= limit.value for name, limit in limits.items()) else taken


def times_in(asked: Taken, limits: Mapping[str, Limit]) -> int:
    """Return how many requests for these amounts can share one device."""
    taken = taken_of(asked, limits)
    if taken is None:
        return 0
    return min((limit.value // taken[name] for name, limit in limits.items() if taken[name]), default=MANY)


def text_of(amount: int) -> str:
    """Return an amount in billionths as a quantity, such as `2Gi`, `3` or `5n`."""
    if amount % NANO:
        return f"{amount}n"
    whole = amount // NANO
    power = next((power for power in range(6, 0, -1) if whole and not whole % (1 << 10 * power)), 0)
    return f"{whole >> 10 * power}{'KMGTPE'[power - 1]}i" if power else str(whole)


def part_of(taken: Taken, limits: Mapping[str, Limit]) -> int:
    """Return how many thousandths of a device are used: the largest share of a capacity; 0 if it has no capacities."""
    parts = [-(-GPU * taken.get(name, 0) // limit.value) for name, limit in limits.items() if limit.value]
    return min(max(parts, default=0), GPU)
