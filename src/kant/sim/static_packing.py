"""Static packing: pods arrive one by one in random order, nothing departs, and every step is measured.

The protocol of FGD's experiments (Weng et al., USENIX ATC 2023, section 6).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.model.node import ClusterSpec
from kant.model.units import GPU, SECOND
from kant.placement.cost.fragmentation import all_fragments
from kant.workload.workload import Workload


def static_arrivals(workload: Workload, cluster: ClusterSpec, inflate: float, seed: int) -> Workload:
    """Return the workload in random order, one pod a second, redrawn or thinned out to `inflate` of the cluster's GPUs.

    Redrawn pods come after all others. With `inflate` 0 the workload keeps its size.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    by_name = np.array(sorted(range(len(workload)), key=workload.ids.__getitem__), dtype=np.int64)
    rows = draw.permutation(by_name)
    milli = workload.gpus * workload.milli * np.maximum(workload.pods, 1)
    target = int(inflate * cluster.gpus * GPU) if inflate else int(milli.sum())
    asked = int(milli.sum())
    extra: list[int] = []
    while asked < target:
        row = int(by_name[draw.integers(len(by_name))])
        # The published protocol counts one GPU of the pod that is drawn here, not all of them.
        if asked + int(workload.milli[row]) * (workload.gpus[row] > 0) > target:
            break
        asked += int(milli[row])
        extra.append(row)
    kept = rows.tolist()
    while asked > target and kept:
        asked -= int(milli[kept.pop(int(draw.integers(len(kept))))])
    order = np.array(kept + extra, dtype=np.int64)
    result = workload.take(order)
    clock = np.arange(len(order), dtype=np.int64) * SECOND
    again = [f"{name}#{i}" for i, name in enumerate(result.ids[len(kept) :], start=1)]
    alone = np.full(len(order), -1, dtype=np.int64)  # nothing ends here, so no job needs a base job
    no_pairs = np.zeros((0, 2), dtype=np.int64)
    return replace(result, submit=clock, base_job=alone, after=no_pairs, ids=result.ids[: len(kept)] + again)


class PackingCurve:
    """Allocation and fragmentation of the cluster after each pod, by the GPUs that all pods so far have requested."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.typical_pods = state.typical_pods
        self.capacity = state.spec.gpus * GPU
        self._by_node: Table = np.zeros(len(state.table), dtype=np.int64)
        self._cursor = -1
        self._fragments = 0
        self._arrived = 0
        self.rows: list[tuple[int, int, int]] = []

    def observe(self, arrived_milli: int) -> None:
        """Record a step: a pod that requests `arrived_milli` was placed or refused."""
        state = self.state
        self._fragments += all_fragments(state.table, self.typical_pods, self._by_node, state.log, self._cursor)
        self._cursor = int(state.log[0])
        self._arrived += arrived_milli
        self.rows.append((self._arrived, int(state.pools[:, 2].sum()), self._fragments))

    def curves(self) -> dict[str, dict[str, float]]:
        """Return `allocated_pct`, `frag_pct` and `frag_ratio_pct` by arrived percent: the mean of steps in each bin."""
        rows = np.array(self.rows, dtype=np.float64).reshape(-1, 3)
        weight = max(int(self.typical_pods[:, 4].sum()), 1)
        arrived = 100 * rows[:, 0] / self.capacity
        bins = np.floor(arrived + 0.5).astype(np.int64)
        fragments = rows[:, 2] / weight
        free = self.capacity - rows[:, 1]
        values = {
            "allocated_pct": np.round(100 * rows[:, 1] / self.capacity, 2),
            "frag_pct": 100 * fragments / self.capacity,
            "frag_ratio_pct": np.where(free > 0, 100 * fragments / np.maximum(free, 1), 0.0),
        }
        return {
            name: {str(b): float(value[bins == b].mean()) for b in np.unique(bins).tolist()}
            for name, value in values.items()
        }
