"""Attempts at a calendar: the search is repeated, with other orders of the bookings, while there is budget.

A budget counts search nodes, not time, so the answer is the same on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, product

import numpy as np
from numpy.typing import NDArray

from kant.compiled import compiled_at_once
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.kernels import FEWEST, LOWEST, OPEN, TIGHTEST, search
from kant.optimize.calendar.sections import Numbers, Sections, sections_of


@compiled_at_once
def first_fit(s: Sections, order: Numbers, offsets: Numbers) -> int:
    """Place pinned bookings first, then the others in `order`, each as low as it fits. Returns the GPUs needed.

    Collisions between pinned bookings are not detected.
    """
    n = s.gpus.shape[0]
    offsets[:] = s.pinned
    needed = 0
    for i in range(n):
        if offsets[i] >= 0:
            needed = max(needed, offsets[i] + s.gpus[i])
    for x in range(n):
        i = order[x]
        if offsets[i] >= 0:
            continue
        at, settled = 0, False
        while not settled:
            settled = True
            for y in range(s.meets_from[i], s.meets_from[i + 1]):
                j = s.meets[y]
                if offsets[j] >= 0 and at < offsets[j] + s.gpus[j] and offsets[j] < at + s.gpus[i]:
                    at = (offsets[j] + s.gpus[j] + s.alignment[i] - 1) // s.alignment[i] * s.alignment[i]
                    settled = False
        offsets[i] = at
        needed = max(needed, at + s.gpus[i])
    return needed


def rank_of(order: Numbers) -> Numbers:
    """The position of each booking in an order."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank


SLICE = 20_000
"""The limit of each attempt of the first tour, in search nodes. The limit rises by SLICE with each tour."""
TOUR = 9
"""The number of attempts in a tour, which tries every combination of order and rule once."""
DISTURBANCE = 0.3
"""The standard deviation of the logarithm of the random factors on booking sizes after the first tour."""
FAILURES = 1 << 18
"""The number of slots of the table of failed states, which takes 4 MiB."""
STEPS = 250_000_000
"""Elementary steps of a deterministic second, which is about one core-second."""


@dataclass(slots=True)
class SearchBudget:
    """The number of search nodes that may still be visited."""

    nodes: int

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.nodes <= 0


@dataclass(slots=True)
class Attempts:
    """Attempts at one set of bookings, and the results of the search for each capacity. `nodes` counts the visited
    search nodes.
    """

    sections: Sections
    sizes: tuple[NDArray[np.float64], ...]
    """The keys that order bookings, the largest first: GPUs, window, and their product."""
    nodes: int = 0
    _failed: dict[int, Numbers] = field(default_factory=dict)
    _ways: dict[int, Iterator[tuple[int, Numbers, int]]] = field(default_factory=dict)

    def fit(self, capacity: int, budget: SearchBudget, most: int = 1 << 62) -> tuple[int, Numbers]:
        """Return FOUND with the offsets of a plan, NONE (no plan), or OPEN once `most` nodes or the budget are spent.

        Starting an attempt takes time, too, so each attempt is charged at least one node per booking.
        """
        if capacity not in self._ways:
            self._failed.clear()  # failures are kept for one capacity at a time
            self._ways[capacity] = self._all_ways()
        if capacity not in self._failed:
            self._failed[capacity] = np.zeros((FAILURES, 2), np.int64)
        offsets = np.zeros(len(self.sections.gpus), np.int64)
        kept = max(budget.nodes - most, 0)
        while budget.nodes > kept:
            limit, rank, rule = next(self._ways[capacity])
            visited = np.zeros(1, np.int64)
            limit = min(limit, budget.nodes - kept)
            found = search(self.sections, rank, capacity, rule, limit, self._failed[capacity], offsets, visited)
            budget.nodes -= max(int(visited[0]), len(offsets))
            self.nodes += int(visited[0])
            if found != OPEN:
                return found, offsets
        return OPEN, offsets

    def _all_ways(self) -> Iterator[tuple[int, Numbers, int]]:
        """Yield the limit, the order and the rule of each attempt. After the first tour the orders are perturbed."""
        for n, (key, rule) in zip(count(), cycle(product(self.sizes, (FEWEST, TIGHTEST, LOWEST)))):
            noise = np.random.Generator(np.random.PCG64(n)).normal(0, DISTURBANCE, len(key))
            order = _order(key * np.exp(noise) if n >= TOUR else key)
            yield SLICE * (1 + n // TOUR), rank_of(order), rule

    def nodes_in(self, limit: float) -> int:
        """The number of search nodes for `limit` deterministic seconds: more for fewer and shorter bookings."""
        bookings, width = self.sections.covers.shape
        steps = bookings + width + int((self.sections.last - self.sections.first).sum())
        return max(int(limit * STEPS / steps), 1)

    def first_fits(self) -> list[tuple[int, Numbers]]:
        """The number of GPUs that first fit needs, and the offsets of its plan, for each of the orders."""
        plans = []
        for size in self.sizes:
            offsets = np.zeros(len(self.sections.gpus), np.int64)
            plans.append((int(first_fit(self.sections, _order(size), offsets)), offsets))
        return plans


def _order(size: NDArray[np.float64]) -> Numbers:
    return np.argsort(-size, kind="stable").astype(np.int64)


def attempts_at(bookings: Sequence[LineBooking]) -> Attempts:
    """Create attempts at these bookings."""
    gpus = np.array([b.gpus for b in bookings], float)
    windows = np.array([b.end - b.start for b in bookings], float)
    return Attempts(sections_of(bookings), (gpus, windows, gpus * windows))
