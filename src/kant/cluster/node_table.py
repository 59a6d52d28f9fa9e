"""Builds the node table and the totals of the pools from scratch, and writes single rows of the node table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.asks import MAX_EXACT
from kant.cluster.columns import Table
from kant.cluster.node_rows import Place, place_columns
from kant.model.errors import StateError
from kant.model.mig import GEOMETRIES
from kant.model.node import MAX_GPUS, Node, PoolKey
from kant.model.status import NodeStatus
from kant.model.units import FOREVER

IN_SERVICE = NodeStatus.IN_SERVICE.value  # a constant, as a lookup takes as long as writing a row

PLACE = slice(c.HBD, c.SUPERSPINE + 1)
"""The columns with the place of a node in the fabric."""


def check_node(node: Node) -> None:
    """Raise StateError for a node that the table cannot describe."""
    if not 0 <= node.gpus <= MAX_GPUS or not 0 <= node.cpu <= FOREVER or not 0 <= node.memory <= FOREVER:
        raise StateError(f"node {node.name!r} has amounts out of range (it may have at most {MAX_GPUS} GPUs)")
    if node.mig and node.mig not in GEOMETRIES:
        raise StateError(f"node {node.name!r} has an unknown MIG geometry: {node.mig!r}")
    if not node.is_regular:
        raise StateError(f"node {node.name!r} has blocks of GPUs that do not divide each other and its GPUs")
    if not all(name and 0 <= amount < MAX_EXACT for name, amount in node.amounts):
        raise StateError(f"node {node.name!r} has exact amounts out of range: {node.amounts}")


def node_table(nodes: Sequence[Node], places: Sequence[Place], pool_of: dict[PoolKey, int]) -> Table:
    """Return the node table of an empty cluster. Entries of `places` beyond those of `nodes` are for spare rows."""
    kinds: dict[tuple[object, ...], list[int]] = {}  # rows by kind of node; even large clusters have few kinds
    for row, node in enumerate(nodes):
        amounts = (node.gpus, node.cpu, node.memory, node.nvlink, node.numa, node.nic)
        kinds.setdefault((*amounts, node.model, node.queues, node.mig, node.flavor, node.amounts), []).append(row)
    for rows in kinds.values():
        check_node(nodes[rows[0]])
    slots = max([node.gpus for node in nodes], default=0)
    table = np.zeros((len(nodes), c.DEVICES + 3 * slots + 1), dtype=np.int64)
    for rows in kinds.values():
        first = nodes[rows[0]]
        write_node(table[rows[0]], first, pool_of[first.pool], slots)
        table[rows] = table[rows[0]]
    if len(places) > len(nodes):
        table = enlarged(table, len(places), slots)
    table[:, PLACE] = place_columns(places)
    return table


def write_node(row: Table, node: Node, pool: int, slots: int) -> None:
    """Write the row of a node in service with nothing taken.

    The row's place in the fabric, revision and extra columns do not change.
    """
    row[: c.HBD] = (
        IN_SERVICE, pool, node.gpus, node.gpus, node.gpus * 1000, node.cpu, node.memory, node.cpu,
        node.memory,
    )  # fmt: skip
    row[c.ISLAND : c.REVISION] = (node.island, *node.blocks, GEOMETRIES[node.mig].milli if node.mig else 0)
    row[c.DEVICES : c.DEVICES + 3 * slots + 1] = 0
    row[c.DEVICES : c.DEVICES + slots] = -1
    row[c.DEVICES : c.DEVICES + node.gpus] = 1000


def retire_row(row: Table, slots: int) -> None:
    """Write a row without a node: it has no capacity, and keeps its pool, its place and its revision."""
    pool = row[c.POOL]
    write_node(row, Node("", 0, cpu=0, memory=0), pool, slots)
    row[c.STATUS] = NodeStatus.RETIRED.value


def enlarged(table: Table, rows: int, slots: int) -> Table:
    """Return a node table with this many rows and device slots; the new rows are retired."""
    had, nodes = c.devices_of(table), len(table)
    extra = c.extra_at(table)
    found: Table = np.zeros((rows, c.DEVICES + 3 * slots + 1 + table.shape[1] - extra), dtype=np.int64)
    found[:nodes, c.extra_at(found) :] = table[:, extra:]
    found[:, c.STATUS] = NodeStatus.RETIRED.value
    found[:, c.DEVICES : c.DEVICES + slots] = -1
    found[:nodes, : c.DEVICES] = table[:, : c.DEVICES]
    for part, width in enumerate((had, had + 1, had)):  # devices, pods by size, slices of devices
        old, new = (c.DEVICES + part * each + (part == 2) for each in (had, slots))
        found[:nodes, new : new + width] = table[:, old : old + width]
    return found


def pool_totals(table: Table, pools: int) -> Table:
    """Return the pool table of a node table, summed up from scratch."""
    totals = np.zeros((pools, c.POOL_WIDTH), dtype=np.int64)
    drained = (table[:, c.STATUS] == NodeStatus.DRAINING) & (table[:, c.FREE] == table[:, c.GPUS] * 1000)
    rows = table[(table[:, c.STATUS] != NodeStatus.FAILED) & ~drained & (table[:, c.GPUS] > 0)]
    capacity, free = rows[:, c.GPUS] * 1000, rows[:, c.FREE]
    np.add.at(totals[:, c.P_NODES], rows[:, c.POOL], 1)
    np.add.at(totals[:, c.P_CAPACITY], rows[:, c.POOL], capacity)
    np.add.at(totals[:, c.P_ALLOCATED], rows[:, c.POOL], capacity - free)
    np.add.at(totals[:, c.P_FRAGMENTED], rows[:, c.POOL], (free > 0) & (free < capacity))
    return totals
