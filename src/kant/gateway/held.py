"""Queues of held requests for one model. Tenants take turns; a tenant's order is priority, deadline, then arrival."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np

from kant.gateway.backend import Placement
from kant.gateway.shares import Shares
from kant.serving.routing import Router

Key = tuple[float, float, int]
"""Priority, deadline and arrival number; the number makes a key unique."""

Group = tuple[int, str]
"""A level of urgency and a tenant."""

SLACK = 64
"""How many stale entries a heap may always keep, even if it is small."""


def held_for(router: Router, shares: Shares) -> Held:
    """Return an empty queue in which requests overtake each other as the router and the tenants' shares allow."""
    return HeldBySize() if router.overtaken else HeldInTurns(shares)


class Held(ABC):
    """The waiting requests of one model. Iterates over them in no particular order."""

    def __init__(self) -> None:
        self.waiting: dict[int, Placement] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.waiting.values())

    @abstractmethod
    def may_ask(self, placed: Placement) -> bool:
        """Whether the router may be asked about a new request before the waiting ones."""

    @abstractmethod
    def push(self, placed: Placement) -> None:
        """Add a request."""

    @abstractmethod
    def discard(self, placed: Placement) -> None:
        """Remove a cancelled request."""

    @abstractmethod
    def place(self, ask: Callable[[Placement], bool]) -> None:
        """Call `ask` for waiting requests in order, as long as more may be placed. Remove those that get a backend."""

    def changed(self, placed: Placement) -> None:
        """Record that the usage of a request's tenant has decreased."""
        del placed  # matters only if tenants take turns

    @abstractmethod
    def last(self, turn: tuple[int, float]) -> Placement | None:
        """Return the last request in order, if it comes after a request of this tenant level and usage; else None."""


class HeldInTurns(Held):
    """Tenants take turns: the least served tenant of the most urgent level.

    Of a tenant's requests, the one with the best priority goes first; among equals, the one with the earliest deadline
    (EDF). There is a heap for each tenant, and one for their turns. Stale entries are dropped or corrected when they
    reach the top; a tenant's heap is also rebuilt once half of it is stale.
    """

    def __init__(self, shares: Shares) -> None:
        super().__init__()
        self.shares = shares
        self.queues: dict[Group, list[Key]] = {}
        self.turns: list[tuple[int, float, str]] = []

    def may_ask(self, placed: Placement) -> bool:
        first = self._first()
        if first is None:
            return True
        if placed.tenant == first.tenant and placed.level == first.level:
            return placed < first
        return (placed.level, self.shares.begins(placed.tenant)) < (first.level, self.shares.of(first.tenant))

    def push(self, placed: Placement) -> None:
        self.shares.came(placed.tenant)
        self.waiting[placed.order] = placed
        group = (placed.level, placed.tenant)
        if group not in self.queues:
            self.queues[group] = []
            self.changed(placed)
        heapq.heappush(self.queues[group], placed.key)

    def changed(self, placed: Placement) -> None:
        """Update a tenant's turn, after its usage has become lower than recorded or it has started to wait."""
        if (placed.level, placed.tenant) in self.queues:
            heapq.heappush(self.turns, (placed.level, self.shares.of(placed.tenant), placed.tenant))
            if len(self.turns) > 2 * len(self.queues) + SLACK:
                self.turns = [self._turn(group) for group in self.queues]
                heapq.heapify(self.turns)

    def discard(self, placed: Placement) -> None:
        self._left(placed)
        queue = self.queues.get((placed.level, placed.tenant), [])
        if len(queue) > 2 * self.shares.waits.get(placed.tenant, 0) + SLACK:
            queue[:] = [key for key in queue if key[2] in self.waiting]
            heapq.heapify(queue)

    def place(self, ask: Callable[[Placement], bool]) -> None:
        while (first := self._first()) is not None and ask(first):
            self._left(first)

    def last(self, turn: tuple[int, float]) -> Placement | None:
        groups = [group for group in self.queues if self._front(group)]
        worst = max(groups, key=self._turn, default=None)
        if worst is None or self._turn(worst)[:2] <= turn:
            return None
        return self.waiting[max(key for key in self.queues[worst] if key[2] in self.waiting)[2]]

    def _turn(self, group: Group) -> tuple[int, float, str]:
        return group[0], self.shares.of(group[1]), group[1]

    def _left(self, placed: Placement) -> None:
        del self.waiting[placed.order]
        self.shares.left(placed.tenant)

    def _front(self, group: Group) -> Placement | None:
        """Return the first waiting request of a tenant."""
        queue = self.queues[group]
        while queue:
            first = self.waiting.get(queue[0][2])
            if first is not None:
                return first
            heapq.heappop(queue)
        return None

    def _first(self) -> Placement | None:
        turns = self.turns
        while turns:
            level, had, tenant = turns[0]
            group = (level, tenant)
            first = self._front(group) if group in self.queues else None
            if first is None:
                heapq.heappop(turns)
                self.queues.pop(group, None)
            elif had != self.shares.of(tenant):
                heapq.heapreplace(turns, self._turn(group))
            else:
                return first
        return None


class HeldBySize(Held):
    """A sorted list in which a request may overtake those before it if it is smaller than all of them.

    An insertion moves all later entries, 16 bytes each. For 10,000 requests this takes as long as ten function calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[Key] = []
        self.sizes = np.empty(SLACK)

    def may_ask(self, placed: Placement) -> bool:
        before = bisect_left(self.keys, placed.key)
        return before == 0 or placed.size < float(self.sizes[:before].min())

    def push(self, placed: Placement) -> None:
        key, count = placed.key, len(self.keys)
        if count == len(self.sizes):
            self.sizes = np.concatenate((self.sizes, np.empty(count)))
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.sizes[at + 1 : count + 1] = self.sizes[at:count]
        self.sizes[at] = placed.size
        self.waiting[placed.order] = placed

    def discard(self, placed: Placement) -> None:
        self._remove(bisect_left(self.keys, placed.key))

    def place(self, ask: Callable[[Placement], bool]) -> None:
        least, at = np.inf, 0
        while True:
            smaller = self.sizes[at : len(self.keys)] < least
            if not smaller.any():
                return
            at += int(smaller.argmax())
            placed = self.waiting[self.keys[at][2]]
            if ask(placed):
                self._remove(at)
            else:
                least, at = placed.size, at + 1

    def last(self, turn: tuple[int, float]) -> Placement | None:
        last = self.waiting[self.keys[-1][2]] if self.keys else None
        return last if last is not None and last.level > turn[0] else None

    def _remove(self, at: int) -> None:
        count = len(self.keys)
        del self.waiting[self.keys.pop(at)[2]]
        self.sizes[at : count - 1] = self.sizes[at + 1 : count]
