"""Caches per demand, kept from cycle to cycle and updated from the log of changed nodes; losing one costs only time.

`NodeScores` caches, for one policy, the score of each node and how many pods fit there. The cache for topology domains
is `topology/domain_capacity.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from kant.cluster.columns import Table, give_piece, take_piece
from kant.compiled import compiled
from kant.placement.fits import mixed, own_capacity
from kant.placement.kernels import INDEX_WIDTH, MARKS_WIDTH, index_kernel
from kant.placement.policy import NodePolicy

INDEX_CELLS = 1 << 22
"""Maximum number of nodes in one index over all its slots: 256 demands at 12,500 nodes, about 100 MB."""


class Slots(ABC):
    """Rows of tables, one for each demand used so far. A subclass allocates the tables in `_allot`.

    `cells` is the size of a slot and `most` the maximum over all slots, in units of the subclass. Beyond `most` all
    slots are dropped and rebuilt on demand; `given_up` counts how often.
    """

    def __init__(self, cells: int, most: int) -> None:
        self.slot_of: dict[int, int] = {}
        self.given_up = 0
        self._room = 4
        self._cells, self._most = cells, most
        self._allot(4, 0)

    @abstractmethod
    def _allot(self, slots: int, kept: int) -> None:
        """Allocate tables of `slots` slots, keeping the contents of the first `kept`."""

    def slots(self, demands: list[int]) -> list[int]:
        """Return the slots of these demands, all valid until `given_up` changes."""
        new = {demand for demand in demands if demand not in self.slot_of}
        used = len(self.slot_of) + len(new)
        if new and used > self._room:
            if used * self._cells > self._most:
                self.slot_of.clear()
                self.given_up += 1
                self._room = max(self._room, len(demands))
                self._allot(self._room, 0)
            else:
                kept, self._room = self._room, max(2 * self._room, used)
                self._allot(self._room, kept)
        return [self.slot_of.setdefault(demand, len(self.slot_of)) for demand in demands]


class NodeScores(Slots):
    """The score of each node for each demand under one policy. `order` has the nodes in tie order."""

    def __init__(self, policy: NodePolicy, order: Table, typical_pods: Table, empty: Table) -> None:
        self.policy = policy
        self.kernel = index_kernel(type(policy))
        self.typical_pods = typical_pods
        self.params = policy.numbers(typical_pods, empty)
        self.fresh = policy.fresh
        self.order: Table = np.stack([order, np.argsort(order)])
        self._size = 1 << max(len(order) - 1, 1).bit_length()
        super().__init__(self._size, INDEX_CELLS)

    def _allot(self, slots: int, kept: int) -> None:
        index = np.zeros((slots, INDEX_WIDTH, self._size), dtype=np.int64)
        index[:, 0] = -1
        marks = np.tile(np.array([-1, 0], dtype=np.int64), (slots, 1))
        assert marks.shape[1] == MARKS_WIDTH
        if kept:
            index[:kept], marks[:kept] = self.index, self.marks
        self.index: Table = index
        self.marks: Table = marks


@compiled
def room_beside(table: Table, pieces: Table, count: int, demands: Table, d: int) -> int:
    """Return how many more pods of demand `d` fit once the first `count` pieces have been given back.

    Affinity rules across several nodes are ignored. The table is restored afterwards.
    """
    before, more = np.full(table.shape[0], -1, dtype=np.int64), 0
    for i in range(count):
        node = pieces[i, 0]
        if before[node] < 0:
            before[node] = own_capacity(table, node, demands, d)
        give_piece(table, pieces[i], demands)
    for i in range(count):
        node = pieces[i, 0]
        if before[node] >= 0:
            more += own_capacity(table, node, demands, d) - before[node]
            before[node] = -1
    for i in range(count - 1, -1, -1):
        take_piece(table, pieces[i], demands)
    return int(more)


def tie_order(policy: NodePolicy, nodes: int, seed: int) -> Table:
    """Return the nodes in tie order: by index, or one random order for the whole run."""
    if policy.ties == "index":
        return np.arange(nodes, dtype=np.int64)
    drawn = [mixed(mixed(seed, -1), node) for node in range(nodes)]
    return np.argsort(np.array(drawn, dtype=np.int64), kind="stable").astype(np.int64)
