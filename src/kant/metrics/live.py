"""Occupancy of a cluster that runs for months: the integrals of the recorder without its samples."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.metrics.recorder import I_ALLOCATED, I_CAPACITY, INTEGRAL_WIDTH, SAMPLE_WIDTH, sample, with_pools


class Occupancy:
    """GPU-seconds allocated and in service, by pool, since the first call of `observe`."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._rows: Table = np.zeros((2, SAMPLE_WIDTH), dtype=np.int64)
        self._used = 0
        self._integrals: Table = np.zeros((len(state.pools), INTEGRAL_WIDTH), dtype=np.int64)
        self._held: Table = np.zeros((len(state.pools), 4), dtype=np.int64)

    def observe(self, now: int) -> None:
        """Record the state's totals, valid from `now` on; `now` must not decrease."""
        state = self.state
        if len(self._held) < len(state.pools):
            self._held = with_pools(self._held, len(state.pools))
            self._integrals = with_pools(self._integrals, len(state.pools))
        used = sample(
            state.pools, self._rows, self._used, self._integrals, self._held,
            now, len(state.pending), state.waiting_milli,
        )  # fmt: skip
        if used == 2:
            self._rows[0] = self._rows[1]
        self._used = 1

    def gpu_seconds(self) -> list[tuple[float, float]]:
        """Return for each pool the GPU-seconds allocated, and in service."""
        a, c = I_ALLOCATED, I_CAPACITY
        rows = self._integrals.tolist()
        return [((r[a] + r[a + 1] / 1e6) / 1000, (r[c] + r[c + 1] / 1e6) / 1000) for r in rows]
