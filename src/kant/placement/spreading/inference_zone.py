"""The inference zone: the leaves in which small replicas are spread, so that other leaves stay whole for training.

The zone is a function of the state alone, without memory of its own, so that a new scheduler, or a replay of a journal,
sees the same zone. Stability comes from the running replicas. Leaves that hold replicas come first, in order of their
number of replicas. While the demand lies between the two shares set in the policy, the zone has exactly as many leaves
as hold replicas. So with a constant demand its size does not change, and a leaf that holds a replica stays in it. Only
a leaf whose last replica has ended may be replaced by one that costs training less. A leaf that leaves the zone gets no
new replicas, and empties as its replicas end. No replica is stopped to change the zone.

Each pool has a zone of its own, made of *cells*: a cell is the pool's nodes in one leaf. (The rule is Kant's own.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import FREE, GPUS, POOL, STATUS, Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.compiled import compiled
from kant.model.placement import MASK, MILLI, NODE
from kant.model.units import GPU
from kant.placement.fits import capacity
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy

# --- columns of a cell ------------------------------------------------------------------------------------------
Z_CAPACITY = 0  # milli-GPUs in service
Z_FREE = 1  # free milli-GPUs in service
Z_WHOLE = 2  # nodes of which all GPUs are free
Z_HELD = 3  # milli-GPUs held by replicas
ZONE_WIDTH = 4


class InferenceZone:
    """The zone of one cluster, updated from its state. Losing this object costs only time."""

    def __init__(
        self, snapshot: Snapshot, policy: ESpread, leaf: Table, order: Table, policy_of: Callable[[Shape], NodePolicy]
    ) -> None:
        self.state = state = snapshot.state
        self.policy = policy
        self.policy_of = policy_of
        pools = state.empty[:, POOL]
        keys = pools * (int(leaf.max(initial=0)) + 1) + leaf
        _, cells = np.unique(keys, return_inverse=True)
        self.cell_of: Table = cells.astype(np.int64).reshape(-1)
        """The cell of each node. Cells are numbered by pool, and then by leaf."""
        self._order = order
        self._cells: Table = np.zeros((int(self.cell_of.max(initial=0)) + 1, ZONE_WIDTH), dtype=np.int64)
        self._pool_of_cell: Table = np.zeros(len(self._cells), dtype=np.int64)
        self._pool_of_cell[self.cell_of] = pools
        self._known: Table = np.zeros((len(pools), 3), dtype=np.int64)  # each node's contribution to its cell
        self._waiting: Table = np.zeros(len(state.pools), dtype=np.int64)  # milli-GPUs of waiting replicas, by pool
        self._largest = [int(state.empty[pools == pool, GPUS].max(initial=0)) for pool in range(len(state.pools))]
        gpus = np.bincount(pools, state.empty[:, GPUS], len(state.pools)).tolist()
        self._size = [int(count) for count in gpus]
        self._small: dict[int, bool] = {}
        self._counted: dict[int, tuple[Table, Table, int, int]] = {}  # by row of a replica: see `_count`
        self._moved = -1
        self._logged = -1
        self._ranked: dict[int, tuple[Table, int, int]] = {}
        self._nodes: dict[tuple[int, ...], Table] = {}  # the zone's nodes in some pools
        self.closed: Table = np.zeros(len(pools), dtype=np.int64)
        """1 for each node in the zone, 0 for the others."""

    # --- which jobs are replicas -----------------------------------------------------------------------------

    def admits(self, shape: Shape) -> bool:
        """Return whether jobs of this shape are replicas: placed by E-Spread, with pods smaller than a node."""
        small = self._small.get(shape.index)
        if small is None:
            whole = max((self._largest[pool] for pool in shape.pools), default=0) * GPU
            small = isinstance(self.policy_of(shape), ESpread) and all(
                group.demand.gpu_milli < whole for group in shape.groups
            )
            self._small[shape.index] = small
        return small

    # --- where they go ---------------------------------------------------------------------------------------

    def nodes(self, shape: Shape, table: Table, demands: Table, demand: int, pods: int) -> Table | None:
        """Return the nodes of the zone, plus those of as many further leaves as are needed to hold `pods` pods.

        They are in tie order. None if even the largest zone that the policy allows would not hold them.
        """
        self.refresh()
        nodes = self._nodes.get(shape.pools)
        if nodes is None:
            nodes = self._nodes[shape.pools] = self._inside(self._zone_of(shape.pools))
        fitting = int(fitting_by_cell(table, nodes, demands, demand, self.cell_of, len(self._cells)).sum())
        if fitting >= pods:
            return nodes
        inside = self._zone_of(shape.pools)
        beyond = [ranked[size:most] for ranked, size, most in map(self._ranked.__getitem__, shape.pools)]
        by_cell = fitting_by_cell(table, self._order, demands, demand, self.cell_of, len(self._cells))
        for place in range(max(map(len, beyond), default=0)):
            for ranked in beyond:
                if place < len(ranked) and fitting < pods:
                    inside[ranked[place]] = True
                    fitting += int(by_cell[ranked[place]])
        return self._inside(inside) if fitting >= pods else None

    def _zone_of(self, pools: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return a mask of the cells of the zone in these pools."""
        inside = np.zeros(len(self._cells), dtype=np.bool_)
        for ranked, size, _ in map(self._ranked.__getitem__, pools):
            inside[ranked[:size]] = True
        return inside

    def _inside(self, cells: NDArray[np.bool_]) -> Table:
        """Return the nodes of these cells, in tie order."""
        nodes: Table = self._order[cells[self.cell_of[self._order]]]
        return nodes

    # --- following the state ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the zone. The cost depends on the changed nodes and jobs, and on the number of leaves."""
        state = self.state
        if self._moved == state.job_changes.end and self._logged == state.log[0]:
            return
        follow(state.table, state.log, self._logged, self.cell_of, self._known, self._cells)
        self._logged = int(state.log[0])
        moved = state.job_changes.since(self._moved) if self._moved >= 0 else None
        self._moved = state.job_changes.end
        if moved is None:
            self._counted.clear()
            self._cells[:, Z_HELD] = 0
            self._waiting[:] = 0
            moved = [*state.pending, *state.running]
        for row in moved:
            self._count(row)
        self._nodes.clear()
        closed = np.zeros(len(self._cells), dtype=np.int64)
        for pool in range(len(state.pools)):
            ranked, size, _ = self._ranked[pool] = self._rank(pool)
            closed[ranked[:size]] = 1
        self.closed = closed[self.cell_of]

    def _count(self, row: int) -> None:
        """Update what a replica holds or is waiting for."""
        before = self._counted.pop(row, None)
        if before is not None:
            cells, milli, pool, waits = before
            np.subtract.at(self._cells[:, Z_HELD], cells, milli)
            self._waiting[pool] -= waits
        state = self.state
        held = state.running.get(row)
        if held is None and row not in state.pending:
            return
        shape = state.shape_of(row)
        if not self.admits(shape):
            return
        if held is None:
            pool = max(shape.pools, key=lambda pool: (self._size[pool], -pool), default=0)
            now = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), pool, shape.gpu_milli)
        else:
            devices = np.array([mask.bit_count() for mask in held[:, MASK].tolist()], dtype=np.int64)
            now = (self.cell_of[held[:, NODE]], devices * held[:, MILLI], 0, 0)
        self._counted[row] = now
        np.add.at(self._cells[:, Z_HELD], now[0], now[1])
        self._waiting[now[2]] += now[3]

    # --- the rule --------------------------------------------------------------------------------------------

    def _rank(self, pool: int) -> tuple[Table, int, int]:
        """Return the cells of a pool in the order in which its zone uses them, the zone's size, and its size limit."""
        own = np.flatnonzero(self._pool_of_cell == pool)
        cells = self._cells[own]
        holds, free = cells[:, Z_HELD] > 0, cells[:, Z_FREE] > 0
        # Leaves with replicas come first, in order of their number of replicas. Then come the leaves that cost training
        # the least: those with free capacity and the fewest whole nodes, and among these those with the most room.
        keys = (own, -cells[:, Z_FREE], cells[:, Z_WHOLE], ~free, -cells[:, Z_HELD])
        ranked = np.lexsort(keys)
        capacity_up_to = np.cumsum(cells[ranked, Z_CAPACITY])
        room_up_to = np.cumsum(cells[ranked, Z_FREE] + cells[ranked, Z_HELD])
        demand = int(cells[:, Z_HELD].sum() + self._waiting[pool])
        if demand == 0 or len(own) == 0:
            return own[ranked], 0, self._at_most(capacity_up_to)
        policy, count = self.policy, len(own)
        fewest = 1 + int(np.searchsorted(room_up_to * policy.grow_at, demand * 100))
        largest = int(np.searchsorted(room_up_to * policy.shrink_at, demand * 100, side="right"))
        size = min(max(int(holds.sum()), fewest), max(largest, fewest))
        most = self._at_most(capacity_up_to)
        return own[ranked], min(max(size, policy.least), most, count), most

    def _at_most(self, capacity_up_to: Table) -> int:
        """Return the maximum number of leaves in the zone, at least one."""
        if len(capacity_up_to) == 0:
            return 0
        share = int(capacity_up_to[-1]) * self.policy.most
        return max(int(np.searchsorted(capacity_up_to * 100, share, side="right")), 1)


@compiled
def follow(table: Table, log: Table, seen: int, cell_of: Table, known: Table, cells: Table) -> None:
    """Add to `cells` the changes of the nodes logged since `seen`, or of all nodes if the log is too short."""
    ring = log.shape[0] - 1
    anew = seen < 0 or log[0] - seen > ring
    for k in range(table.shape[0] if anew else log[0] - seen):
        node = k if anew else log[1 + (seen + k) % ring]
        serves = table[node, STATUS] == 0
        capacity_now = table[node, GPUS] * 1000 if serves else 0
        free = table[node, FREE] if serves else 0
        whole = 1 if serves and table[node, GPUS] > 0 and free == capacity_now else 0
        cell = cells[cell_of[node]]
        cell[Z_CAPACITY] += capacity_now - known[node, 0]
        cell[Z_FREE] += free - known[node, 1]
        cell[Z_WHOLE] += whole - known[node, 2]
        known[node, 0] = capacity_now
        known[node, 1] = free
        known[node, 2] = whole


@compiled
def fitting_by_cell(table: Table, nodes: Table, demands: Table, d: int, cell_of: Table, cells: int) -> Table:
    """Return how many pods of demand `d` fit on the given nodes of each cell."""
    fitting = np.zeros(cells, dtype=np.int64)
    for i in range(nodes.shape[0]):
        fitting[cell_of[nodes[i]]] += capacity(table, nodes[i], demands, d)
    return fitting
