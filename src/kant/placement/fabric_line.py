"""The fabric as a line: the nodes in an order in which every domain of every level is one stretch.

Domains are numbered through, level by level: the nodes themselves, HBDs, leaves, spines, superspines, and last the
whole cluster. Within a level they stand as on the line, so the domains inside a wider one are a range of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kant.cluster.columns import HBD, LEAF, SPINE, STATUS, SUPERSPINE, Table
from kant.model.job import LEVELS
from kant.model.status import NodeStatus

COLUMNS = (HBD, LEAF, SPINE, SUPERSPINE)
"""The columns of the levels above the node."""
HBD_LEVEL, LEAF_LEVEL = LEVELS.index("hbd"), LEVELS.index("leaf")
CLUSTER = len(LEVELS)
"""The level of the one domain that holds all nodes."""


class Fabric:
    """Who is in which domain. Earlier in tie order is earlier on the line: domains as well as nodes in a leaf."""

    def __init__(self, table: Table, order: Table) -> None:
        nodes = len(table)
        rank = np.argsort(order)
        firsts = []  # for each level above the node, the place in tie order of the first node of each node's domain
        for column in COLUMNS:
            first = np.full(int(table[:, column].max(initial=-1)) + 1, nodes, dtype=np.int64)
            np.minimum.at(first, table[:, column], rank)
            firsts.append(first[table[:, column]])
        self.walk: Table = np.lexsort((rank, *firsts)).astype(np.int64)
        """The node at each place of the line."""
        self.place_of: Table = np.argsort(self.walk).astype(np.int64)
        self.home: Table = np.zeros((nodes, CLUSTER + 1), dtype=np.int64)
        """The domain of each level at each place."""
        self.home[:, 0] = np.arange(nodes)
        self.offsets = [0, nodes]
        """The first domain of each level, and after the last level the number of domains."""
        for level, first in enumerate(firsts, start=1):
            begins = np.diff(first[self.walk], prepend=-1) != 0
            self.home[:, level] = self.offsets[level] + np.cumsum(begins) - 1
            self.offsets.append(self.offsets[level] + int(begins.sum()))
        self.home[:, CLUSTER] = self.offsets[CLUSTER]
        self.offsets.append(self.offsets[CLUSTER] + 1)
        self.flat = self.offsets[HBD_LEVEL + 1] - self.offsets[HBD_LEVEL] == nodes
        """Whether every HBD is one node."""
        self.spans: Table = np.zeros((self.offsets[-1], 2), dtype=np.int64)
        """Where each domain begins and ends on the line."""
        self.spans[:nodes, 0], self.spans[:nodes, 1] = np.arange(nodes), np.arange(nodes) + 1
        for level in range(1, CLUSTER + 1):
            ids, begins_at, counts = np.unique(self.home[:, level], return_index=True, return_counts=True)
            self.spans[ids, 0], self.spans[ids, 1] = begins_at, begins_at + counts

        self.above: Table = np.zeros((self.offsets[-1], 2), dtype=np.int64)
        """The spine and the superspine around each domain; what has none around it has the cluster."""
        for level in range(CLUSTER + 1):
            ids = self.home[:, level]
            for k, wider in enumerate((LEAF_LEVEL + 1, LEAF_LEVEL + 2)):
                self.above[ids, k] = self.home[:, wider if wider > level else CLUSTER]

    def splits(self, domain: int, level: int) -> bool:
        """Whether a domain of `level` is made of parts worth choosing among: not nodes, nor HBDs of one node each."""
        if level != LEAF_LEVEL or self.flat:
            return level > LEAF_LEVEL
        begin, end = self.spans[domain].tolist()
        first, last = self.inside(domain, HBD_LEVEL)
        return bool(last - first < end - begin)

    def level_of(self, domain: int) -> int:
        level = 0
        while self.offsets[level + 1] <= domain:
            level += 1
        return level

    def inside(self, domain: int, level: int) -> tuple[int, int]:
        """The domains of a narrower `level` inside `domain`: the first, and the one after the last."""
        begin, end = self.spans[domain].tolist()
        return (int(self.home[begin, level]), int(self.home[end - 1, level]) + 1) if begin < end else (0, 0)


def one_domain_each(table: Table, level: int) -> Iterator[Table]:
    """For each domain of a level a copy of the node table in which only its nodes are in service."""
    domains = table[:, COLUMNS[level - 1]] if level else np.arange(len(table))
    for domain in range(int(domains.max(initial=-1)) + 1):
        alone = table.copy()
        alone[domains != domain, STATUS] = NodeStatus.FAILED
        yield alone


def ranks_of(table: Table) -> Table:
    """The rank of each node in the fabric: by superspine, spine, leaf, HBD and index. A gang's pods are numbered so."""
    places = np.lexsort((np.arange(len(table)), *(table[:, column] for column in COLUMNS)))
    return np.argsort(places).astype(np.int64)
