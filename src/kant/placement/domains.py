"""The search in two steps: a domain of the fabric first, then nodes inside it.

A gang that asks for a level of the fabric, or whose policy wishes for one, goes into one domain of that level
(`gang.py`); so do those that are cut (`segments.py`), or that mind where others of their affinity group are
(`apart.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, Allocation
from kant.placement.apart import Apart
from kant.placement.fabric_line import CLUSTER, LEAF_LEVEL, Fabric, ranks_of
from kant.placement.gang import Gang
from kant.placement.policy import NodePolicy
from kant.placement.rooms import Rooms
from kant.placement.segments import in_rank_order
from kant.placement.stretch import Kernel, kernel_of


class Domains:
    """Places gangs by domains on a snapshot. `order` is the order in which equals are taken."""

    def __init__(self, snapshot: Snapshot, policy: NodePolicy, order: Table, seed: int) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.seed = seed
        self.mix = snapshot.mix
        self.fabric = Fabric(snapshot.table, order)
        self.rooms = Rooms(self.fabric)
        self._ranks = ranks_of(snapshot.table)
        self.wish = LEVELS.index(policy.wish) if policy.wish else CLUSTER
        self._kernels: dict[tuple[int, int, int], tuple[Kernel, Table, bool]] = {}
        self.nowhere: Table = np.zeros(self.rooms.domains, dtype=np.int64)

    def place(
        self,
        shape: Shape,
        salt: int,
        pieces: Table,
        companions: Sequence[Allocation] = (),
        held: Allocation | None = None,
    ) -> Allocation | NoFit:
        """The whole gang placed and taken from the snapshot's table, in the order of the fabric; or why not.

        `pieces` is where to build it, large enough for the gang; `companions` what its affinity group holds. `held` is
        what an elastic gang has already: then `shape` is that of its further pods, which come near it, and into its
        domain where it requires one.
        """
        company = shape.company
        if company is not None and company.apart >= 0:
            gang: Gang = Apart(self, shape, salt, pieces, companions, strict=True)
            result = gang.seat(companions)
            if isinstance(result, NoFit) and not company.apart_required:
                gang = Apart(self, shape, salt, pieces, companions, strict=False)
                result = gang.seat(companions)
        elif held is not None:
            gang = Gang(self, shape, salt, pieces)
            gang.lies_at(held)
            result = gang.beside(shape.level, held) if shape.required else gang.anywhere(gang.narrowest)
        else:
            gang = Gang(self, shape, salt, pieces)
            result = gang.seat(companions)
        if isinstance(result, NoFit):
            return result
        allocation = pieces[:result]
        if shape.cuts:
            return in_rank_order(self.snapshot.table, gang.parts(), shape.cuts)
        return allocation[np.argsort(self._ranks[allocation[:, NODE]], kind="stable")]

    def near(
        self, shape: Shape, node: int, widest: int, beside: list[int], salt: int, pieces: Table
    ) -> Allocation | None:
        """The whole gang placed and taken in the narrowest domain around `node` that takes it; None where none does.

        `widest` is the level of the last domain that is tried. Of the domains inside it those come first that have one
        of the nodes `beside`.
        """
        gang = Gang(self, shape, salt, pieces)
        gang.touched = self.nowhere.copy()
        gang.touched[self.fabric.home[self.fabric.place_of[beside]]] = 1
        for domain in self.fabric.home[self.fabric.place_of[node], : widest + 1].tolist():
            result = gang._in(domain)
            if not isinstance(result, NoFit):
                return pieces[:result].copy()
        return None

    def narrowest(self, shape: Shape) -> int:
        """The level of which a domain is looked for first."""
        # One pod is on one node wherever it is: its leaf is chosen first.
        return shape.level if shape.level >= 0 else LEAF_LEVEL if shape.pods == 1 and self.wish < CLUSTER else self.wish

    def kernel(self, shape: Shape, group: int) -> tuple[Kernel, Table, bool]:
        """Who places a group inside a domain, with its numbers, and whether node by node."""
        pods = shape.parts[group][0]
        key = (group, len(shape.parts), pods)
        mix = self.snapshot.mix
        if mix is not self.mix:
            self.mix = mix
            self._kernels.clear()
        found = self._kernels.get(key)
        if found is None:
            policy, by_node = self.policy.chooser(*key)
            found = self._kernels[key] = (kernel_of(type(policy)), policy.numbers(mix), by_node)
        return found
