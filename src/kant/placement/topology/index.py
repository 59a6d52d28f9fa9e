"""The fabric as a line: an order of the nodes in which every domain of every level is contiguous.

Domains are numbered consecutively, level by level: the nodes themselves, HBDs, leaves, spines, superspines, and last
the whole cluster. Within a level they are in line order, so the domains inside a wider domain are a range of numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import HBD, LEAF, SPINE, SUPERSPINE, Table
from kant.model.job import LEVELS

COLUMNS = (HBD, LEAF, SPINE, SUPERSPINE)
"""The columns of the levels above the node."""
HBD_LEVEL, LEAF_LEVEL = LEVELS.index("hbd"), LEVELS.index("leaf")
CLUSTER = len(LEVELS)
"""The level of the one domain that holds all nodes."""


class Fabric(NamedTuple):
    """The attributes of a `Topology` that compiled functions read."""

    node_order: Table
    position: Table
    domain_of: Table
    domain_range: Table
    ancestors: Table
    inner: Table
    splits: NDArray[np.bool_]
    offsets: Table
    ranks: Table
    no_domain: Table
    flat: bool


class Topology:
    """The domains of each node. The line has domains in the tie order of their first nodes, and nodes in tie order."""

    def __init__(self, table: Table, order: Table) -> None:
        nodes = len(table)
        rank = inverse(order)
        above = table[:, COLUMNS].T.copy()  # reads the wide table once: by level, the domain of each node
        firsts = []  # by level: the position in tie order of the first node of each node's domain
        for domains in above:
            first = np.empty(int(domains.max(initial=-1)) + 1, dtype=np.int64)
            first[domains[order[::-1]]] = rank[order[::-1]]  # of several nodes, the last one written is the first
            firsts.append(first[domains])
        self.node_order: Table = np.lexsort((rank, *firsts)).astype(np.int64)
        """The node at each position of the line."""
        self.position: Table = inverse(self.node_order)
        self.domain_of: Table = np.zeros((nodes, CLUSTER + 1), dtype=np.int64)
        """The domain of each level at each position."""
        self.domain_of[:, 0] = np.arange(nodes)
        self.offsets = [0, nodes]
        """The first domain of each level, and after the last level the number of domains."""
        begins_at = [np.arange(nodes)]  # by level: where each domain begins
        for level, first in enumerate(firsts, start=1):
            begins = np.diff(first[self.node_order], prepend=-1) != 0
            self.domain_of[:, level] = self.offsets[level] + np.cumsum(begins) - 1
            begins_at.append(np.flatnonzero(begins))
            self.offsets.append(self.offsets[level] + len(begins_at[level]))
        self.domain_of[:, CLUSTER] = self.offsets[CLUSTER]
        begins_at.append(np.zeros(min(nodes, 1), dtype=np.int64))
        self.offsets.append(self.offsets[CLUSTER] + 1)
        self.flat = self.offsets[HBD_LEVEL + 1] - self.offsets[HBD_LEVEL] == nodes
        """Whether every HBD is one node."""
        self.domain_range: Table = np.zeros((self.offsets[-1], 2), dtype=np.int64)
        """Where each domain begins and ends in `node_order`."""
        self.ancestors: Table = np.zeros((self.offsets[-1], 2), dtype=np.int64)
        """The spine and the superspine around each domain; the cluster where there is none."""
        for level, begins in enumerate(begins_at):
            own = slice(self.offsets[level], self.offsets[level] + len(begins))
            self.domain_range[own, 0], self.domain_range[own, 1] = begins, np.append(begins[1:], nodes)[: len(begins)]
            for k, wider in enumerate((LEAF_LEVEL + 1, LEAF_LEVEL + 2)):
                self.ancestors[own, k] = self.domain_of[begins, wider if wider > level else CLUSTER]

        self.level_of: Table = np.repeat(np.arange(CLUSTER + 1), np.diff(self.offsets)).astype(np.int64)
        """The level of each domain."""
        self.inner: Table = np.zeros((self.offsets[-1], 2), dtype=np.int64)
        """The domains of the next narrower level inside each domain: the first, and the one after the last."""
        for level in range(1, CLUSTER + 1):
            own = slice(*self.offsets[level : level + 2])
            begins, ends = self.domain_range[own].T
            self.inner[own, 0] = self.domain_of[begins, level - 1] if nodes else 0
            self.inner[own, 1] = self.domain_of[ends - 1, level - 1] + 1 if nodes else 0
        self.splits = self.level_of > LEAF_LEVEL
        """Whether it matters which parts of a domain a gang uses: not for nodes, nor for HBDs of one node each."""
        if not self.flat:
            leaves = slice(*self.offsets[LEAF_LEVEL : LEAF_LEVEL + 2])
            self.splits[leaves] = np.diff(self.inner[leaves])[:, 0] < np.diff(self.domain_range[leaves])[:, 0]
        self.ranks = inverse(np.lexsort(above))
        """Each node's rank in the fabric: by superspine, spine, leaf, HBD and index. It numbers a gang's pods."""
        self.no_domain: Table = np.zeros(self.offsets[-1], dtype=np.int64)
        """A zero for each domain. Read-only."""
        self.fabric = Fabric(
            self.node_order, self.position, self.domain_of, self.domain_range, self.ancestors, self.inner, self.splits,
            np.array(self.offsets, dtype=np.int64), self.ranks, self.no_domain, self.flat,
        )  # fmt: skip

    def inside(self, domain: int, level: int) -> tuple[int, int]:
        """Return the domains of a narrower `level` inside `domain`: the first, and the one after the last."""
        begin, end = self.domain_range[domain].tolist()
        return (int(self.domain_of[begin, level]), int(self.domain_of[end - 1, level]) + 1) if begin < end else (0, 0)


def inverse(order: Table) -> Table:
    """Return the position of each number in a permutation of 0 to n - 1."""
    places: Table = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places
