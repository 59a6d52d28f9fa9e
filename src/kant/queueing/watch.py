"""Detects the changes of the state since the last check that may let a sleeping bucket start."""

from __future__ import annotations

from kant.cluster.columns import P_FREED, Table
from kant.cluster.state import ClusterState
from kant.compiled import inlined

# What may let an unschedulable job start, besides capacity freed in one of its pools.
NODES = 1
"""Any node changes: a gang of several groups may fit even with less free capacity."""
JOBS = 2
"""Any job starts or stops: that may change which jobs may be evicted for which."""
LIVE = 4
"""Any job arrives, starts, stops or leaves: that changes the fair shares of the queues."""
QUOTA = 8
"""Quota is freed, or the quotas change."""
RIGHTS = 16
"""The bounds on evictable running jobs change: the lowest priority, or whether any queue is beyond its quota."""

ANY_START = NODES | JOBS | LIVE
"""What changes when the current plan starts a job."""
ANYTHING = -1


@inlined
def freed(pools: Table, seen: Table) -> int:
    """Return the pools in which capacity was freed since `seen`, as bits, and update `seen`."""
    bits = 0
    for pool in range(pools.shape[0]):
        if pools[pool, P_FREED] != seen[pool]:
            seen[pool] = pools[pool, P_FREED]
            bits |= 1 << pool
    return bits


class Watch:
    """Compares counters of the state with those of the last check; with `rights` also the eviction bounds."""

    def __init__(self, state: ClusterState, rights: bool = False) -> None:
        self.state = state
        self._bounds = state.eviction_bounds() if rights else None
        self.freed: Table = state.pools[:, P_FREED].copy()
        """How often capacity had been freed in each pool."""
        self.log, self._quota = int(state.log[0]), state.quota_usage.quota_version

    def changes(self, changed: int) -> int:
        """Return `changed` and, as they apply, NODES, QUOTA and RIGHTS; update the counters except `freed`."""
        state = self.state
        log, quota = int(state.log[0]), state.quota_usage.quota_version
        changed |= (NODES if log != self.log else 0) | (QUOTA if quota != self._quota else 0)
        if self._bounds is not None and self._bounds != (bounds := state.eviction_bounds()):
            self._bounds = bounds
            changed |= RIGHTS
        self.log, self._quota = log, quota
        return changed

    def bounds(self) -> tuple[int, bool]:
        """Return the eviction bounds of the last check, or the present ones if they are not watched."""
        return self.state.eviction_bounds() if self._bounds is None else self._bounds

    def advanced(self, log: int, lowest: int, beyond: int, quota: int) -> None:
        """Record what compiled code has seen of the state (`sim/advance.py`)."""
        self.log, self._quota = log, quota
        self._bounds = lowest, beyond > 0
