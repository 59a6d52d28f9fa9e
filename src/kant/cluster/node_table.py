"""The table of the nodes, and the totals of their pools, made from scratch."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shapes
from kant.model.errors import Violation
from kant.model.node import MAX_GPUS, ClusterSpec
from kant.model.status import NodeStatus
from kant.model.units import FOREVER


def node_table(spec: ClusterSpec, shapes: Shapes) -> Table:
    """The node table of an empty cluster."""
    for node in spec.nodes:
        if not 0 <= node.gpus <= MAX_GPUS or not 0 <= node.cpu <= FOREVER or not 0 <= node.memory <= FOREVER:
            raise Violation(f"node {node.name!r} has amounts that cannot be counted (and at most {MAX_GPUS} GPUs)")
    slots = max((node.gpus for node in spec.nodes), default=0)
    table = np.zeros((len(spec.nodes), c.DEVICES + 2 * slots + 1), dtype=np.int64)
    domains: list[dict[str, int]] = [{}, {}, {}]
    for row, node in zip(table, spec.nodes, strict=True):
        path = (
            node.superspine,
            f"{node.superspine}/{node.spine}",
            f"{node.superspine}/{node.spine}/{node.leaf}",
        )
        superspine, spine, leaf = (names.setdefault(key, len(names)) for names, key in zip(domains, path, strict=True))
        row[: c.DEVICES] = (
            NodeStatus.IN_SERVICE.value, shapes.pool_of[(node.model, node.queues)], node.gpus, node.gpus,
            node.gpus * 1000, node.cpu, node.memory, node.cpu, node.memory, leaf, spine, superspine,
        )  # fmt: skip
        row[c.DEVICES : c.DEVICES + slots] = -1
        row[c.DEVICES : c.DEVICES + node.gpus] = 1000
    return table


def pool_totals(table: Table, pools: int) -> Table:
    """The pool table that belongs to a node table, added up from scratch."""
    totals = np.zeros((pools, c.POOL_WIDTH), dtype=np.int64)
    drained = (table[:, c.STATUS] == NodeStatus.DRAINING) & (table[:, c.FREE] == table[:, c.GPUS] * 1000)
    rows = table[(table[:, c.STATUS] != NodeStatus.FAILED) & ~drained & (table[:, c.GPUS] > 0)]
    capacity, free = rows[:, c.GPUS] * 1000, rows[:, c.FREE]
    np.add.at(totals[:, c.P_NODES], rows[:, c.POOL], 1)
    np.add.at(totals[:, c.P_CAPACITY], rows[:, c.POOL], capacity)
    np.add.at(totals[:, c.P_ALLOCATED], rows[:, c.POOL], capacity - free)
    np.add.at(totals[:, c.P_FRAGMENTED], rows[:, c.POOL], (free > 0) & (free < capacity))
    return totals
