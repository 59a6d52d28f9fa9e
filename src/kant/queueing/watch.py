"""A watch on the state: what has changed there since the last look that may let a sleeping bucket start."""

from __future__ import annotations

from kant.cluster.columns import P_FREED
from kant.cluster.state import ClusterState
from kant.queueing.bucket import NODES, QUOTA, RIGHTS


class Watch:
    """Compares counters of the state with those of the last look. With `rights` it also says who may be evicted."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._bounds: tuple[int, bool] | None = None
        self.sees_rights = False
        self._look()

    def _look(self) -> None:
        """Changes are counted from here on."""
        state = self.state
        self._log, self._quota = int(state.log[0]), state.quota_usage.quota_version
        self._capacity, self._freed = state.capacity_version, state.pools[:, P_FREED].tolist()

    def rights(self) -> None:
        """From now on, watch who may be evicted at all. The state must be as at the last look."""
        self.sees_rights, self._bounds = True, self.state.eviction_bounds()

    def changes(self, changed: int) -> tuple[int, int]:
        """`changed` and what else wakes buckets (NODES, QUOTA, RIGHTS), and the pools in which capacity came free, as
        bits; then look."""
        state, pools = self.state, 0
        if state.capacity_version != self._capacity:
            for pool, count in enumerate(state.pools[:, P_FREED].tolist()):
                pools |= (count != self._freed[pool]) << pool
        changed |= NODES if state.log[0] != self._log else 0
        changed |= QUOTA if state.quota_usage.quota_version != self._quota else 0
        if self._bounds is not None and self._bounds != (bounds := state.eviction_bounds()):
            self._bounds = bounds
            changed |= RIGHTS
        self._look()
        return changed, pools
