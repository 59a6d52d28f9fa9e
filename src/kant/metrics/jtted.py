"""JTTED: how much longer a job is expected to run where it was put than where it could best have been put.

Jobs bring no communication model yet, so every gang is taken to slow down with the lowest fabric level that holds
all of it, by the factors below (ours; a placement on one node counts 1). The two plain ratios need no model: nodes
used over the fewest possible, and leaf groups used over the fewest possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.units import FOREVER

SLOWDOWN = np.array([1.00, 1.02, 1.06, 1.12, 1.20])
"""Run time of a gang inside one node, leaf, spine, superspine, and beyond, over that inside one node."""


def best_span(shape: Shape, demands: Table, empty: Table) -> tuple[int, int, int]:
    """The fewest nodes and leaves on which `shape` could lie in an empty cluster, and the lowest level for it.

    `empty` is the node table of the empty cluster. A shape that never fits gets (0, 0, 0).
    """
    nodes = 0
    open_nodes = np.zeros(len(empty), dtype=np.bool_)
    for count, d in shape.parts:
        fits = pods_per_node(empty, demands[d])
        open_nodes |= fits > 0
        most_first = np.cumsum(np.sort(fits)[::-1])
        if most_first[-1] < count:
            return 0, 0, 0
        nodes += int(np.searchsorted(most_first, count)) + 1
    fewest = [_fewest(empty[open_nodes, level], nodes) for level in (c.LEAF, c.SPINE, c.SUPERSPINE)]
    level = 0 if nodes == 1 else next((i + 1 for i, domains in enumerate(fewest) if domains == 1), 4)
    return nodes, fewest[0], level


def pods_per_node(table: Table, demand: Table) -> Table:
    """How many pods of one demand each node takes when it is empty."""
    gpus, milli, cpu, memory, pools = (int(value) for value in demand[:5])
    fits = np.full(len(table), FOREVER, dtype=np.int64)
    if gpus:
        fits = table[:, c.GPUS] // gpus if milli == 1000 else table[:, c.GPUS] * (1000 // milli) // gpus
        fits = np.where(table[:, c.GPUS] >= gpus, fits, 0)
    if cpu:
        fits = np.minimum(fits, table[:, c.CPU] // cpu)
    if memory:
        fits = np.minimum(fits, table[:, c.MEMORY] // memory)
    admitted = (pools >> table[:, c.POOL]) & 1
    admitted_fits: Table = np.minimum(fits, 1 << 32) * admitted
    return admitted_fits


def _fewest(domain_of_node: Table, nodes: int) -> int:
    """The fewest domains that have `nodes` nodes between them."""
    sizes = np.sort(np.bincount(domain_of_node))[::-1]
    return int(np.searchsorted(np.cumsum(sizes), nodes)) + 1


def jtted(spans: Table, best: Table, sizes: dict[str, Any]) -> dict[str, Any]:
    """The metric over started jobs: rows of `spans` and `best` are (nodes, leaves, level) of the same job.

    `sizes` has a mask over the jobs for each size class.
    """
    if len(spans) == 0:
        return {"mean": None, "nodes_ratio": None, "leaves_ratio": None, "by_size": {}}
    factor = SLOWDOWN[spans[:, 2]] / SLOWDOWN[best[:, 2]]
    nodes, leaves = (spans[:, i] / np.maximum(best[:, i], 1) for i in (0, 1))
    by_size = {
        name: {
            "count": int(mask.sum()),
            "mean": float(factor[mask].mean()),
            "p90": float(np.quantile(factor[mask], 0.9)),
            "nodes_ratio": float(nodes[mask].mean()),
            "leaves_ratio": float(leaves[mask].mean()),
        }
        for name, mask in sizes.items()
        if mask.any()
    }
    return {
        "mean": float(factor.mean()),
        "nodes_ratio": float(nodes.mean()),
        "leaves_ratio": float(leaves.mean()),
        "by_size": by_size,
    }
