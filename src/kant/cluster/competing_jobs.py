"""CompetingJobs: the live jobs, grouped by the pools that admit them."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_SHAPE, POOL
from kant.cluster.state_data import StateData
from kant.model.errors import StateError


class PoolGroup:
    """The live jobs that the same pools admit. `last_changed`: when one of the jobs or pools last changed, µs."""

    __slots__ = ("last_changed", "pending", "pools", "running")

    def __init__(self, pools: int, now: int) -> None:
        self.pools = pools
        self.pending: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.last_changed = now


class CompetingJobs:
    """The live jobs of a state, one `PoolGroup` for each set of pools (as bits), with jobs in the state's order."""

    def __init__(self, state: StateData) -> None:
        self.state = state
        self.groups: dict[int, PoolGroup] = {}
        self.reshaped()

    def reshaped(self) -> None:
        """Rebuild the groups, since other pools than before may admit live jobs."""
        state = self.state
        self.groups.clear()
        shapes, first = np.unique(state.jobs[: len(state.ids), J_SHAPE], return_index=True)
        for index in shapes[np.argsort(first)].tolist():  # in the order in which the first job of each arrived
            bits = state.shapes.shapes[index].pool_bits
            self.groups.setdefault(bits, PoolGroup(bits, state.now))
        for row in (*state.pending, *state.running):
            self.job_changed(row, state.now)

    def job_changed(self, row: int, now: int) -> None:
        """Update the groups after a job arrived, started, stopped, left, or made progress."""
        state, bits = self.state, self.state.shape_of(row).pool_bits
        group = self.groups.get(bits)
        if group is None:
            group = self.groups[bits] = PoolGroup(bits, now)
        group.last_changed = now
        for own, every in ((group.pending, state.pending), (group.running, state.running)):
            if row not in every:
                own.pop(row, None)
            elif row not in own:
                own[row] = None

    def node_changed(self, node: int, now: int) -> None:
        """Update the groups after the capacity of a node changed."""
        pool = int(self.state.table[node, POOL])
        for group in self.groups.values():
            if (group.pools >> pool) & 1:
                group.last_changed = now

    def check(self) -> None:
        """Raise StateError unless the groups are the live jobs of the state, in its order."""
        state = self.state
        for bits, group in self.groups.items():
            for own, every in ((group.pending, state.pending), (group.running, state.running)):
                if list(own) != [row for row in every if state.shape_of(row).pool_bits == bits]:
                    raise StateError("violated invariant: the jobs that compete for pools are those that may use them")
