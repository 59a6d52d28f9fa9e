"""A second definition of the quotas of a tree, as plain as possible: everything is recomputed from what jobs hold.

It is slow, by name and without indexes, and independent of `cluster/quota_tree.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from kant.model.tenant import Queue, QueueConfig, Quota

Key = tuple[str, str]
"""GPU model and resource."""

Holding = tuple[str, int, Mapping[Key, int]]
"""Queue, user, and the amounts that one of their jobs holds."""


class NaiveQuotas:
    """The queues of one configuration, and the list of holdings."""

    def __init__(self, queue_config: QueueConfig) -> None:
        self.queues = {queue.name: queue for queue in queue_config.queues}
        self.held: list[Holding] = []

    def limits(self, name: str, key: Key) -> Quota:
        """The queue's quota for the key. A root and an isolated queue neither lend nor borrow."""
        queue = self.queues[name]
        quota = next((quota for quota in queue.quotas if (quota.model, quota.resource) == key), Quota())
        if queue.isolated or not queue.parent:
            return Quota(nominal=quota.nominal, borrowing_limit=0, lending_limit=0, user_limit=quota.user_limit)
        return quota

    def below(self, name: str) -> list[Queue]:
        return [queue for queue in self.queues.values() if queue.parent == name]

    def path(self, name: str) -> list[str]:
        return [name, *self.path(self.queues[name].parent)] if name else []

    def lends(self, name: str, key: Key) -> int:
        """The part of the queue's quota that others may use."""
        quota, limit = self.quota(name, key), self.limits(name, key).lending_limit
        return quota if limit == -1 else min(quota, limit)

    def quota(self, name: str, key: Key) -> int:
        return self.limits(name, key).nominal + sum(self.lends(child.name, key) for child in self.below(name))

    def takes(self, name: str, key: Key) -> int:
        """The queue's use of what is shared under its parent."""
        return max(0, self.usage(name, key) - (self.quota(name, key) - self.lends(name, key)))

    def usage(self, name: str, key: Key) -> int:
        own = sum(amounts.get(key, 0) for queue, _, amounts in self.held if queue == name)
        return own + sum(self.takes(child.name, key) for child in self.below(name))

    def of_user(self, name: str, user: int, key: Key) -> int:
        """What the user holds in the queue and its descendants."""
        return sum(
            amounts.get(key, 0) for queue, whose, amounts in self.held if whose == user and name in self.path(queue)
        )

    def passed(self, queue: str, key: Key, amount: int) -> set[str]:
        """The queues whose limits `amount` more in `queue` would exceed: those whose use grows beyond their limit."""
        before = {name: self.usage(name, key) for name in self.queues}
        self.held.append((queue, 0, {key: amount}))
        after = {name: self.usage(name, key) for name in self.queues}
        self.held.pop()
        return {
            name
            for name in self.queues
            if after[name] > before[name]
            and (limit := self.limits(name, key).borrowing_limit) != -1
            and after[name] > self.quota(name, key) + limit
        }

    def fits(self, queue: str, user: int, amounts: Mapping[Key, int]) -> bool:
        """Whether a job of `user` in `queue` may take `amounts`."""
        for key, amount in amounts.items():
            for name in self.path(queue) if amount > 0 else ():
                limit = self.limits(name, key).user_limit
                if limit != -1 and self.of_user(name, user, key) + amount > limit:
                    return False
            if amount > 0 and self.passed(queue, key, amount):
                return False
        return True

    def largest(self, queue: str, key: Key) -> int:
        """The largest amount that may be charged to the queue, found by trial."""
        amount = 0
        while not self.passed(queue, key, amount + 1):
            amount += 1
        return amount

    def fair_shares(self, key: Key, demand: Mapping[str, int]) -> dict[str, Fraction]:
        """The entitlement of each queue, in fractions."""
        shares: dict[str, Fraction] = {}
        for queue in self.below(""):
            self._share(queue.name, Fraction(self._wants(queue.name, key, demand)), key, demand, shares)
        return shares

    def _wants(self, name: str, key: Key, demand: Mapping[str, int]) -> int:
        wants = demand[name] + sum(self._wants_of_parent(child.name, key, demand) for child in self.below(name))
        limit = self.limits(name, key).borrowing_limit
        return wants if limit == -1 else min(wants, self.quota(name, key) + limit)

    def _wants_of_parent(self, name: str, key: Key, demand: Mapping[str, int]) -> int:
        return max(0, self._wants(name, key, demand) - (self.quota(name, key) - self.lends(name, key)))

    def _share(
        self, name: str, share: Fraction, key: Key, demand: Mapping[str, int], shares: dict[str, Fraction]
    ) -> None:
        shares[name] = share
        children = self.below(name)
        wants = [self._wants_of_parent(child.name, key, demand) for child in children] + [demand[name]]
        floors = [self.lends(child.name, key) for child in children] + [self.limits(name, key).nominal]
        first = [min(want, floor) for want, floor in zip(wants, floors, strict=True)]
        more = levelled(
            share - sum(first),
            [want - floor for want, floor in zip(wants, first, strict=True)],
            [child.weight for child in children] + [1],
        )
        for child, floor, extra in zip(children, first[:-1], more[:-1], strict=True):
            kept = self.quota(child.name, key) - self.lends(child.name, key)
            own = min(self._wants(child.name, key, demand), kept)
            self._share(child.name, own + floor + extra, key, demand, shares)


def levelled(total: Fraction, wants: Sequence[int], weights: Sequence[int]) -> list[Fraction]:
    """`total` distributed by weight in rounds, until it is used up or all wants are met."""
    parts = [Fraction(0)] * len(wants)
    while total > 0 and (thirsty := [i for i, want in enumerate(wants) if parts[i] < want]):
        # All shares grow at the speed of their weights until one is satisfied or nothing is left.
        rise = min((wants[i] - parts[i]) / weights[i] for i in thirsty)
        rise = min(rise, total / sum(weights[i] for i in thirsty))
        for i in thirsty:
            parts[i] += rise * weights[i]
            total -= rise * weights[i]
    return parts
