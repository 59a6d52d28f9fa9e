"""JTTED: how much longer a job is expected to run at its placement than at the best possible one.

The expected run time comes from the communication model (placement/cost/communication.py). The two plain ratios need no
model: nodes used over the fewest possible, and leaf groups used over the fewest possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import T_LEAVES, T_NODES, SpanRows


def jtted(
    spans: SpanRows, best: NDArray[np.integer[Any]], rows: Table, slowdowns: Table, sizes: dict[str, Any]
) -> dict[str, Any]:
    """Return JTTED over the started jobs `rows`, from the nodes and leaves in `spans` and `best`, and `slowdowns` (‰).

    `sizes` has a mask over `rows` for each size class. With half a million jobs only one ratio at a time is in memory.
    """
    if len(rows) == 0:
        return {"mean": None, "nodes_ratio": None, "leaves_ratio": None, "by_size": {}}
    sizes, factor = {name: mask for name, mask in sizes.items() if mask.any()}, slowdowns / FULL
    found: dict[str, Any] = {"mean": float(factor.mean())}
    by_size: dict[str, dict[str, float]] = {}
    for name, mask in sizes.items():
        own = factor[mask]
        by_size[name] = {"count": len(own), "mean": float(own.mean()), "p90": float(np.quantile(own, 0.9))}
    del factor
    for at, (column, what) in enumerate(((T_NODES, "nodes_ratio"), (T_LEAVES, "leaves_ratio"))):
        ratio = spans[rows, column] / best[rows, at]
        found[what] = float(ratio.mean())
        for name, mask in sizes.items():
            by_size[name][what] = float(ratio[mask].mean())
        del ratio
    return {**found, "by_size": by_size}
