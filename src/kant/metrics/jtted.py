"""JTTED: how much longer a job is expected to run at its placement than at the best possible one.

The expectation is that of the communication model (placement/cost/communication.py). The two plain ratios need no
model: nodes used over the fewest possible, and leaf groups used over the fewest possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.placement.cost.communication import FULL


def jtted(slowdowns: Table, ratios: Iterator[NDArray[np.float64]], sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the metric over started jobs, each with a slowdown (‰). `ratios` are those of nodes, then of leaves.

    `sizes` has a mask over the jobs for each size class. A year has half a million jobs: one ratio at a time is there.
    """
    if len(slowdowns) == 0:
        return {"mean": None, "nodes_ratio": None, "leaves_ratio": None, "by_size": {}}
    sizes, factor = {name: mask for name, mask in sizes.items() if mask.any()}, slowdowns / FULL
    found: dict[str, Any] = {"mean": float(factor.mean())}
    by_size: dict[str, dict[str, float]] = {}
    for name, mask in sizes.items():
        own = factor[mask]
        by_size[name] = {"count": len(own), "mean": float(own.mean()), "p90": float(np.quantile(own, 0.9))}
    del factor
    for what in ("nodes_ratio", "leaves_ratio"):
        ratio = next(ratios)
        found[what] = float(ratio.mean())
        for name, mask in sizes.items():
            by_size[name][what] = float(ratio[mask].mean())
        del ratio
    return {**found, "by_size": by_size}
