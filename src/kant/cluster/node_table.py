"""The table of the nodes, and the totals of their pools, made from scratch."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shapes
from kant.model.errors import StateError
from kant.model.mig import GEOMETRIES
from kant.model.node import MAX_GPUS, ClusterSpec
from kant.model.status import NodeStatus
from kant.model.units import FOREVER


def node_table(spec: ClusterSpec, shapes: Shapes) -> Table:
    """The node table of an empty cluster."""
    for node in spec.nodes:
        if not 0 <= node.gpus <= MAX_GPUS or not 0 <= node.cpu <= FOREVER or not 0 <= node.memory <= FOREVER:
            raise StateError(f"node {node.name!r} has amounts that cannot be counted (and at most {MAX_GPUS} GPUs)")
        if node.mig and node.mig not in GEOMETRIES:
            raise StateError(f"node {node.name!r} has a MIG geometry that nobody knows: {node.mig!r}")
        if not node.is_regular:
            raise StateError(f"node {node.name!r} has blocks of GPUs that do not divide each other and its GPUs")
    slots = max((node.gpus for node in spec.nodes), default=0)
    table = np.zeros((len(spec.nodes), c.DEVICES + 3 * slots + 1), dtype=np.int64)
    domains: list[dict[tuple[str, ...], int]] = [{}, {}, {}, {}]
    for row, node in zip(table, spec.nodes, strict=True):
        path = (
            (node.superspine,),
            (node.superspine, node.spine),
            (node.superspine, node.spine, node.leaf),
            (node.superspine, node.spine, node.leaf, "hbd", node.hbd) if node.hbd else ("node", node.name),
        )
        superspine, spine, leaf, hbd = (
            names.setdefault(key, len(names)) for names, key in zip(domains, path, strict=True)
        )
        row[: c.DEVICES] = (
            NodeStatus.IN_SERVICE.value, shapes.pool_of[node.pool], node.gpus, node.gpus,
            node.gpus * 1000, node.cpu, node.memory, node.cpu, node.memory, hbd, leaf, spine, superspine,
            node.island, *node.blocks, GEOMETRIES[node.mig].milli if node.mig else 0, 0,
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
