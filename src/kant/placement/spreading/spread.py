"""Spreading: pods go where the fewest pods of their service are, in the whole cluster or in the inference zone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kant.cluster.columns import D_COUNTED, FREE, Table, note_change, note_counts
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial, move
from kant.compiled import compiled
from kant.model.decision import NoFit
from kant.model.placement import GROUP, NODE, PODS, Allocation
from kant.placement.fits import capacity, tightest
from kant.placement.pieces import PieceBuffer, put
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy
from kant.placement.scored import Route
from kant.placement.spreading.inference_zone import InferenceZone
from kant.placement.spreading.services import Services
from kant.placement.topology.index import LEAF_LEVEL, Topology


class SpreadPlacement:
    """Spreads the pods of jobs of one shape: inside the inference zone if `packed` is set, otherwise over all nodes.

    `others` places the gangs that the zone cannot hold, and those of several groups that may fit in another order.
    """

    def __init__(self, spreading: SpreadPlacer, shape: Shape, packed: bool, pieces: PieceBuffer, others: Route) -> None:
        self.spreading = spreading
        self.shape = shape
        self.packed = packed
        self.pieces = pieces
        self.others = others

    def place(self, job_row: int) -> Allocation | NoFit:
        """Place and take the whole gang, or return the first group that does not fit and how many of its pods do."""
        found = self.spreading.place(self.shape, job_row, self.packed, self.pieces.rows)
        if found is None or (isinstance(found, NoFit) and len(self.shape.parts) > 1):
            return self.others.place(job_row)
        if not isinstance(found, NoFit):
            affinity = self.shape.affinity
            self.spreading.trial.placed(found, affinity.group if affinity is not None else "")
        return found

    def may_fit(self) -> bool:
        """Return whether each group, taken alone, fits on all nodes together."""
        return self.others.may_fit()

    def missing(self) -> int | None:
        """Return by how many pods the gang exceeds the room of all nodes; None if only an attempt to place it tells."""
        return self.others.missing()


class SpreadPlacer:
    """Places jobs whose policy spreads. `order` is the tie order."""

    def __init__(
        self,
        snapshot: Snapshot,
        trial: Trial,
        order: Table,
        topology: Topology,
        zone: ESpread | None,
        policy_of: Callable[[Shape], NodePolicy],
    ) -> None:
        self.snapshot = snapshot
        self.trial = trial
        self.order = order
        leaves = topology.domain_of[topology.position, LEAF_LEVEL] - topology.offsets[LEAF_LEVEL]
        self._leaf: Table = leaves.astype(np.int64)
        self._leaves = topology.offsets[LEAF_LEVEL + 1] - topology.offsets[LEAF_LEVEL]
        self.services = Services(snapshot, trial, lambda shape: policy_of(shape).spreads)
        self.zone = InferenceZone(snapshot, zone, self._leaf, order, policy_of) if zone is not None else None

    def place(self, shape: Shape, row: int, packed: bool, pieces: Table) -> Allocation | NoFit | None:
        """Place and take the whole gang, or return the first group that does not fit; None: the zone cannot hold it.

        `packed`: in the inference zone, and on the fullest of equal nodes instead of the emptiest.
        """
        counts: Table = np.zeros(len(self.order), dtype=np.int64)  # pods of the service on each node
        for allocation in self.services.held(row):
            np.add.at(counts, allocation[:, NODE], allocation[:, PODS])
        by_leaf: Table = np.bincount(self._leaf, counts, self._leaves).astype(np.int64)
        table, log, demands = self.snapshot.table, self.snapshot.log, self.snapshot.state.shapes.demands
        used = 0
        for group, (pods, demand) in enumerate(shape.parts):
            nodes = self.order
            if packed:
                assert self.zone is not None
                zone = self.zone.nodes(shape, table, demands, demand, pods)
                if zone is None:
                    move(table, log, pieces[:used], demands, False)
                    return None
                nodes = zone
            found = spread(
                table, log, demands, demand, nodes, self._leaf, counts, by_leaf, packed, pods, pieces, used
            )  # fmt: skip
            if found < 0:
                move(table, log, pieces[:used], demands, False)
                return NoFit(group, pods, -1 - found)
            pieces[used:found, GROUP] = shape.numbers[group]
            used = found
        allocation = pieces[:used].copy()
        self.services.placed(row, allocation)
        return allocation


@compiled
def spread(
    table: Table, log: Table, demands: Table, d: int, nodes: Table, leaf: Table, counts: Table, by_leaf: Table,
    packed: bool, pods: int, pieces: Table, used: int,
) -> int:  # fmt: skip
    """Place pods of demand `d` one by one: on the node, then in the leaf, with the fewest pods of the service.

    Of equal nodes the fullest if `packed`, else the emptiest; then the first of `nodes`. `counts` and `by_leaf` are
    updated. Appends to `pieces` from row `used` on and takes them from `table`. Returns the number of rows used, or -1
    - f if only f pods fit (then nothing is taken).
    """
    fitting = np.zeros(nodes.shape[0], dtype=np.int64)
    total = 0
    for i in range(nodes.shape[0]):
        fitting[i] = capacity(table, nodes[i], demands, d)
        total += fitting[i]
    if total < pods:
        return int(-1 - total)
    begin = used
    for _ in range(pods):
        best, key = -1, (0, 0, 0)
        for i in range(nodes.shape[0]):
            if fitting[i] > 0:
                node = nodes[i]
                free = table[node, FREE]
                own = (counts[node], by_leaf[leaf[node]], free if packed else -free)
                if best < 0 or own < key:
                    best, key = i, own
        node = nodes[best]
        used = put(table, node, tightest(table, node, demands, d), demands, d, pieces, begin, used)
        fitting[best] = capacity(table, node, demands, d)
        counts[node] += 1
        by_leaf[leaf[node]] += 1
        note_change(log, node)
        if demands[d, D_COUNTED] > 0:
            note_counts(table, log, node, demands, d)
    return used
