"""The search in two steps: a domain of the fabric first, then nodes inside it.

A gang that asks for a level of the fabric, or whose policy wishes for one, goes into one domain of that level; of those
that hold it, into the one by which large holes suffer least (`rooms.best_domain`). Where none holds it, a gang that
only prefers the level goes up level by level, and in the narrowest domain that holds it to the fewest domains below:
the largest first, and the last as tight as it can be.

For a gang of one group the answer is exact. Several groups are placed one after the other, and domains are tried in
order until all groups have a place in one.

Sources: best fit of a required or preferred level as in Kueue's topology-aware scheduling (KEP-2724); which of the
fitting domains, after E-Binpack of Kant, arXiv 2510.01256 (the exact rule is ours).
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, move
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, Allocation
from kant.placement.fabric_line import CLUSTER, Fabric, ranks_of
from kant.placement.policy import NodePolicy
from kant.placement.rooms import R_FREE, R_TAKES, Rooms, best_domain, largest_domain
from kant.placement.stretch import Kernel, kernel_of


class Domains:
    """Places gangs by domains on a snapshot. `order` is the order in which equals are taken."""

    def __init__(self, snapshot: Snapshot, policy: NodePolicy, order: Table, seed: int) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.seed = seed
        self.fabric = Fabric(snapshot.table, order)
        self.rooms = Rooms(self.fabric)
        self._ranks = ranks_of(snapshot.table)
        self._wish = LEVELS.index(policy.wish) if policy.wish else CLUSTER
        self._kernels: dict[tuple[int, int, int], tuple[Kernel, Table, bool]] = {}
        self._nowhere: Table = np.zeros(self.rooms.domains, dtype=np.int64)

    def place(self, shape: Shape, salt: int, pieces: Table, held: Allocation | None = None) -> Allocation | NoFit:
        """The whole gang placed and taken from the snapshot's table, in the order of the fabric; or why not.

        `pieces` is where to build it, large enough for the gang. `held` is what the gang has already: then `shape` is
        that of its further pods, which come near it, and into its domain where it requires one.
        """
        gang = Gang(self, shape, salt, pieces)
        if held is not None:
            gang.lies_at(held)
        if held is not None and shape.required:
            result = gang.beside(shape.level, held)
        elif shape.required:
            result = gang.in_one_of(shape.level)
        else:
            # One pod is on one node wherever it is: its leaf is chosen first.
            narrowest = (1 if shape.pods == 1 else self._wish) if shape.level < 0 else shape.level
            result = gang.anywhere(narrowest)
        if isinstance(result, NoFit):
            return result
        allocation = pieces[:result]
        return allocation[np.argsort(self._ranks[allocation[:, NODE]], kind="stable")]

    def kernel(self, shape: Shape, group: int) -> tuple[Kernel, Table, bool]:
        """Who places a group inside a domain, with its numbers, and whether node by node."""
        pods = shape.parts[group][0]
        key = (group, len(shape.parts), pods)
        found = self._kernels.get(key)
        if found is None:
            policy, by_node = self.policy.chooser(*key)
            params = np.array(policy.params or (0,), dtype=np.int64)
            found = self._kernels[key] = (kernel_of(type(policy)), params, by_node)
        return found


class Gang:
    """One gang on its way to its place."""

    def __init__(self, domains: Domains, shape: Shape, salt: int, pieces: Table) -> None:
        self.domains = domains
        self.fabric = domains.fabric
        self.rooms = domains.rooms
        self.shape = shape
        self.salt = salt
        self.pieces = pieces
        self.touched = domains._nowhere  # 1 for the domains in which it has pods
        self.slots = self.rooms.slots([demand for _, demand in shape.parts])
        self.counts: Table = np.array([count for count, _ in shape.parts], dtype=np.int64)
        for group in range(len(shape.parts)):
            self._follow(group)

    def lies_at(self, held: Allocation) -> None:
        """It has pods there already."""
        self.touched = self.touched.copy()
        self.touched[self.fabric.home[self.fabric.place_of[held[:, NODE]]]] = 1

    def beside(self, level: int, held: Allocation) -> int | NoFit:
        """In the domain of `level` in which it has pods already."""
        return self._in(int(self.fabric.home[self.fabric.place_of[held[0, NODE]], level]))

    def anywhere(self, narrowest: int) -> int | NoFit:
        """In one domain of the narrowest level that has one, from `narrowest` on; the cluster is the last."""
        whole = self.fabric.offsets[CLUSTER]
        for group, slot in enumerate(self.slots.tolist()):
            takes = int(self.rooms.rooms[slot, whole, R_TAKES])
            if takes < self.counts[group]:
                return NoFit(group, int(self.counts[group]), takes)
        for level in range(narrowest, CLUSTER):
            result = self._tried(level)[0]
            if result is not None:
                return result
        return self._in(whole)

    def in_one_of(self, level: int) -> int | NoFit:
        """In one domain of `level`; or what the best of them takes."""
        result, failures = self._tried(level)
        if result is not None:
            return result
        first, last = self.fabric.offsets[level : level + 2]
        takes = self.rooms.rooms[self.slots, first:last, R_TAKES]
        missing = np.maximum(self.counts[:, None] - takes, 0)
        short = missing.sum(axis=0)
        best = int(np.argmin(short)) if last > first else -1
        if (
            best >= 0 and short[best] == 0 and not failures
        ):  # each group would fit there alone, but there are no such GPUs
            fitting = np.flatnonzero(short == 0)
            best = int(fitting[np.argmax(self.rooms.rooms[self.slots[0], first + fitting, R_FREE])])
            verdict = self._in(first + best)
            assert isinstance(verdict, NoFit)
            failures = [verdict]
        if failures:
            closest = min(failures, key=lambda failure: failure.pods - failure.fits)
            return NoFit(closest.group, closest.pods, closest.fits, LEVELS[level])
        group = int(np.argmax(missing[:, best] > 0)) if best >= 0 else 0
        return NoFit(group, int(self.counts[group]), int(takes[group, best]) if best >= 0 else 0, LEVELS[level])

    def _tried(self, level: int) -> tuple[int | None, list[NoFit]]:
        """The gang in the first of the domains of `level` that holds it, the best first; or how each try failed."""
        failures: list[NoFit] = []
        failed = self.domains._nowhere
        first, last = self.fabric.offsets[level : level + 2]
        while True:
            domain = best_domain(
                self.rooms.rooms, self.slots, self.counts, self.shape.gpu_milli, first, last, self.fabric.home,
                self.fabric.above, self.touched, failed,
            )  # fmt: skip
            if domain < 0:
                return None, failures
            result = self._in(domain)
            if not isinstance(result, NoFit):
                return result, failures
            failures.append(result)
            if len(failures) == 1:
                failed = failed.copy()
            failed[domain] = 1

    def _in(self, domain: int) -> int | NoFit:
        """All groups in one domain, or none of them. A group that fails chooses first in another attempt."""
        order = list(range(len(self.shape.parts)))
        result = self._in_order(order, domain)
        for _ in range(len(order) - 1):
            if not isinstance(result, NoFit) or order[0] == result.group:
                break
            order.remove(result.group)
            order.insert(0, result.group)
            result = self._in_order(order, domain)
        return result

    def _in_order(self, order: list[int], domain: int) -> int | NoFit:
        used, before = 0, self.touched
        snapshot = self.domains.snapshot
        for group in order:
            if used:
                self._follow(group)
                self.touched = before.copy()
                self.touched[self.fabric.home[self.fabric.place_of[self.pieces[:used, NODE]]]] = 1
            pods, takes = int(self.counts[group]), int(self.rooms.rooms[self.slots[group], domain, R_TAKES])
            if takes < pods:
                if used:
                    move(snapshot.table, snapshot.log, self.pieces[:used], False)
                    for placed in range(len(order)):
                        self._follow(placed)
                self.touched = before
                return NoFit(group, pods, takes)
            used = self._fill(group, domain, used)
        return used

    def _fill(self, group: int, domain: int, used: int) -> int:
        """One group, which fits, in `domain`: on the fewest domains of each level below, down to the leaf."""
        fabric, rooms = self.fabric, self.rooms.rooms
        slots, rest = self.slots[group : group + 1], int(self.counts[group])
        level = fabric.level_of(domain)
        while level > 1:
            first, last = fabric.inside(domain, level - 1)
            count = np.array([rest], dtype=np.int64)
            inner = best_domain(
                rooms, slots, count, 0, first, last, fabric.home, fabric.above, self.touched, self.domains._nowhere
            )  # fmt: skip
            if inner >= 0:
                domain, level = inner, level - 1
                continue
            full = int(largest_domain(rooms, int(slots[0]), first, last, self.touched))
            takes = int(rooms[slots[0], full, R_TAKES])
            used = self._settle(group, full, takes, used)
            self._follow(group)
            rest -= takes
        return self._settle(group, domain, rest, used)

    def _settle(self, group: int, domain: int, count: int, used: int) -> int:
        """So many pods of a group on the nodes of a domain, as the policy says."""
        snapshot, fabric = self.domains.snapshot, self.fabric
        kernel, params, by_node = self.domains.kernel(self.shape, group)
        state = snapshot.state
        first, last = fabric.spans[domain].tolist()
        return kernel(
            snapshot.table, snapshot.log, state.shapes.demands, self.shape.parts[group][1], state.mix, params,
            fabric.walk, first, last, count, by_node, self.domains.seed, self.salt, self.pieces, used,
        )  # fmt: skip

    def _follow(self, group: int) -> None:
        snapshot = self.domains.snapshot
        self.rooms.follow(
            int(self.slots[group]), snapshot.table, snapshot.log, snapshot.state.shapes.demands,
            self.shape.parts[group][1],
        )  # fmt: skip
