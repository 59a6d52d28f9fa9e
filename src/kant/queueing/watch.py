"""A watch on the state: what has changed there since the last look that may let a sleeping bucket start."""

from __future__ import annotations

from kant.cluster.columns import P_FREED, Table
from kant.cluster.state import ClusterState
from kant.compiled import inlined

# What may let an unschedulable job start, beside capacity that comes free in one of its pools.
NODES = 1
"""Any node changes: a gang of several groups may fit where less is free."""
JOBS = 2
"""Any job starts or stops: it may change who may be evicted for whom."""
LIVE = 4
"""Any job comes, starts, stops or leaves: it changes the fair shares of the queues."""
QUOTA = 8
"""Quota comes free, or the quotas change."""
RIGHTS = 16
"""Running jobs that may be evicted come to be, or are no more: one of lower priority, or one beyond its quota."""

ANY_START = NODES | JOBS | LIVE
"""What changes when the plan under way starts a job."""
ANYTHING = -1


@inlined
def freed(pools: Table, seen: Table) -> int:
    """The pools in which capacity has come free since it was `seen`, as bits; then it is seen."""
    bits = 0
    for pool in range(pools.shape[0]):
        if pools[pool, P_FREED] != seen[pool]:
            seen[pool] = pools[pool, P_FREED]
            bits |= 1 << pool
    return bits


class Watch:
    """Compares counters of the state with those of the last look. With `rights` it also says who may be evicted."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._bounds: tuple[int, bool] | None = None
        self.sees_rights = False
        self.freed: Table = state.pools[:, P_FREED].copy()
        """How often capacity had come free in each pool."""
        self.log, self._quota = int(state.log[0]), state.quota_usage.quota_version

    def rights(self) -> None:
        """From now on, watch who may be evicted at all. The state must be as at the last look."""
        self.sees_rights, self._bounds = True, self.state.eviction_bounds()

    def changes(self, changed: int) -> int:
        """`changed` and what else wakes buckets (NODES, QUOTA, RIGHTS); then look. For pools see `freed`."""
        state = self.state
        log, quota = int(state.log[0]), state.quota_usage.quota_version
        changed |= (NODES if log != self.log else 0) | (QUOTA if quota != self._quota else 0)
        if self._bounds is not None and self._bounds != (bounds := state.eviction_bounds()):
            self._bounds = bounds
            changed |= RIGHTS
        self.log, self._quota = log, quota
        return changed
