"""JTTED: how much longer a job is expected to run at its placement than at the best possible one.

The expectation is that of the communication model (placement/cost/communication.py). The two plain ratios need no
model: nodes used over the fewest possible, and leaf groups used over the fewest possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kant.cluster.columns import Table
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import SpanRows


def jtted(spans: SpanRows, best: Table, slowdowns: Table, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the metric over started jobs, each with nodes and leaves in `spans` and `best`, and a slowdown (‰).

    `sizes` has a mask over the jobs for each size class.
    """
    if len(spans) == 0:
        return {"mean": None, "nodes_ratio": None, "leaves_ratio": None, "by_size": {}}
    factor = slowdowns / FULL
    nodes, leaves = (spans / best).T
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
