"""A gang on its way to its place: which domain of the fabric, and how it is laid out inside it.

Of the domains of a level that hold the gang it takes the one by which large holes suffer least (`rooms.best_domain`).
Where none holds it, a gang that only prefers the level goes up level by level, and in the narrowest domain that holds
it to the fewest domains below: the largest first, and the last as tight as it can be.

For a gang of one group the answer is exact, also where it is cut into segments (`segments.py`). Several groups are
placed one after the other, and domains are tried in order until all groups have a place in one.

Sources: best fit of a required or preferred level as in Kueue's topology-aware scheduling (KEP-2724); which of the
fitting domains, after E-Binpack of Kant, arXiv 2510.01256 (the exact rule is ours).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, move
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, PODS, Allocation
from kant.placement.fabric_line import CLUSTER, HBD_LEVEL, Fabric
from kant.placement.rooms import R_FREE, R_TAKES, Rooms, best_domain, largest_domain
from kant.placement.segments import UNCUT, fitting, in_segments, roomiest
from kant.placement.stretch import Kernel


class Ground(Protocol):
    """What the gangs of one placer share (`domains.py`). `nowhere` has a zero for each domain."""

    snapshot: Snapshot
    seed: int
    fabric: Fabric
    rooms: Rooms
    wish: int
    mix: Table
    nowhere: Table

    def narrowest(self, shape: Shape) -> int: ...

    def kernel(self, shape: Shape, group: int) -> tuple[Kernel, Table, bool]: ...


class Gang:
    """One gang on its way to its place."""

    def __init__(self, domains: Ground, shape: Shape, salt: int, pieces: Table) -> None:
        self.domains = domains
        self.fabric = domains.fabric
        self.rooms = domains.rooms
        self.shape = shape
        self.salt = salt
        self.pieces = pieces
        self.touched = domains.nowhere  # 1 for the domains in which it has pods
        self.base = 0  # pods are not counted together with those of pieces before this one
        self.slots = self.rooms.slots([demand for _, demand in shape.parts])
        self.counts: Table = np.array([count for count, _ in shape.parts], dtype=np.int64)
        self.cuts = shape.cuts or (UNCUT,) * len(shape.parts)
        self.ranges: dict[int, tuple[int, int]] = {}  # the pieces of each group that has its place
        for group in range(len(shape.parts)):
            self._follow(group)

    def seat(self, companions: Sequence[Allocation]) -> int | NoFit:
        """Where the job asks for; by preference in a domain that hosts its companions, the most of them first."""
        shape = self.shape
        near = shape.company.near if shape.company is not None else -1
        for domain in self._hosting(companions, near) if near >= 0 else ():
            if shape.required and shape.level < near:
                found, _ = self._tried(shape.level, domain)
            else:
                result = self._in(domain)
                found = None if isinstance(result, NoFit) else result
            if found is not None:
                return found
        if shape.required:
            return self.in_one_of(shape.level)
        return self.anywhere(self.narrowest)

    def lies_at(self, held: Allocation) -> None:
        """It has pods there already."""
        self.touched = self.touched.copy()
        self.touched[self.fabric.home[self.fabric.place_of[held[:, NODE]]]] = 1

    def beside(self, level: int, held: Allocation) -> int | NoFit:
        """In the domain of `level` in which it has pods already."""
        return self._in(int(self.fabric.home[self.fabric.place_of[held[0, NODE]], level]))

    @property
    def narrowest(self) -> int:
        """The level of which a domain is looked for first."""
        return self.domains.narrowest(self.shape)

    def _hosting(self, companions: Sequence[Allocation], level: int) -> list[int]:
        """The domains of a level with pods of companions, the most first."""
        pods = np.zeros(self.rooms.domains, dtype=np.int64)
        for allocation in companions:
            places = self.fabric.place_of[allocation[:, NODE]]
            np.add.at(pods, self.fabric.home[places, level], allocation[:, PODS])
        return sorted(np.flatnonzero(pods).tolist(), key=lambda domain: (-pods[domain], domain))

    def anywhere(self, narrowest: int) -> int | NoFit:
        """In one domain of the narrowest level that has one, from `narrowest` on; the cluster is the last."""
        whole = self.fabric.offsets[CLUSTER]
        for group, count in enumerate(self.counts.tolist()):
            takes = self._takes_in(group, whole, count)
            if takes < count:
                return self._no_fit(group, takes)
        for level in range(narrowest, CLUSTER):
            if level == HBD_LEVEL > narrowest and self.fabric.flat:
                continue  # the same domains as those of the nodes
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
        takes = np.stack([self._takes(group, level, count) for group, count in enumerate(self.counts.tolist())])
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
            return self._no_fit(closest.group, closest.fits, level)
        group = int(np.argmax(missing[:, best] > 0)) if best >= 0 else 0
        return self._no_fit(group, int(takes[group, best]) if best >= 0 else 0, level)

    def _no_fit(self, group: int, fits: int, level: int = CLUSTER) -> NoFit:
        """So many pods of a group fit in the best domain of a level that is required; CLUSTER: anywhere."""
        count = int(self.counts[group])
        segment, inner = self.cuts[group]
        if segment == 0 or level <= inner:
            return NoFit(group, count, fits, LEVELS[level] if level < CLUSTER else "")
        if segment == count:
            return NoFit(group, count, fits, LEVELS[inner])
        return NoFit(group, count, fits, LEVELS[level] if level < CLUSTER else "", segment, LEVELS[inner])

    def _takes(self, group: int, level: int, pods: int) -> Table:
        """How many of `pods` pods of a group, or more, each domain of a level takes."""
        segment, inner = self.cuts[group]
        rooms = self.rooms.rooms[self.slots[group]]
        if segment == 0 or level <= inner:
            first, last = self.fabric.offsets[level : level + 2]
            takes: Table = rooms[first:last, R_TAKES]
            return takes
        return fitting(self.fabric, rooms, level, inner, segment, pods)

    def _takes_in(self, group: int, domain: int, pods: int) -> int:
        """The same of one domain."""
        if not self.shape.cuts:
            return int(self.rooms.rooms[self.slots[group], domain, R_TAKES])
        level = self.fabric.level_of(domain)
        return int(self._takes(group, level, pods)[domain - self.fabric.offsets[level]])

    def _closed(self, level: int, groups: range | tuple[int, ...], pods: list[int]) -> Table:
        """1 for the domains of a level that have the room, but not in whole segments."""
        closed = self.domains.nowhere
        if not self.shape.cuts:
            return closed
        first, last = self.fabric.offsets[level : level + 2]
        for group, count in zip(groups, pods, strict=True):
            segment, inner = self.cuts[group]
            if segment and level > inner:
                closed = closed.copy()
                closed[first:last] |= self._takes(group, level, count) < count
        return closed

    def _tried(self, level: int, inside: int = -1) -> tuple[int | None, list[NoFit]]:
        """The gang in the first of the domains of `level` that holds it, the best first; or how each try failed.

        With `inside` only the domains in that wider one.
        """
        failures: list[NoFit] = []
        failed = self._closed(level, range(len(self.counts)), self.counts.tolist())
        first, last = self.fabric.inside(inside, level) if inside >= 0 else self.fabric.offsets[level : level + 2]
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
            if failed is self.domains.nowhere:
                failed = failed.copy()
            failed[domain] = 1

    def ranked(self, level: int) -> Iterator[int]:
        """The domains of `level` that hold the gang, the best first. Nothing is placed."""
        first, last = self.fabric.offsets[level : level + 2]
        passed = self._closed(level, range(len(self.counts)), self.counts.tolist()).copy()
        while True:
            domain = best_domain(
                self.rooms.rooms, self.slots, self.counts, self.shape.gpu_milli, first, last, self.fabric.home,
                self.fabric.above, self.touched, passed,
            )  # fmt: skip
            if domain < 0:
                return
            yield int(domain)
            passed[domain] = 1

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
            pods = int(self.counts[group])
            takes = self._takes_in(group, domain, pods)
            if takes < pods:
                if used:
                    move(snapshot.table, snapshot.log, self.pieces[:used], False)
                    for placed in range(len(order)):
                        self._follow(placed)
                self.touched = before
                return self._no_fit(group, takes, self.fabric.level_of(domain))
            self.base = used if self.shape.cuts else 0
            begin, used = used, self._fill(group, domain, pods, used)
            self.ranges[group] = (begin, used)
        return used

    def parts(self) -> list[Table]:
        """The pieces of each group, in the job's order."""
        return [self.pieces[slice(*self.ranges[group])] for group in range(len(self.counts))]

    def _fill(self, group: int, domain: int, rest: int, used: int) -> int:
        """So many pods of a group, which fit, in `domain`: on the fewest domains of each level below.

        Down to the leaf or HBD, and in any case to the level by which the group is cut.
        """
        fabric, rooms = self.fabric, self.rooms.rooms
        slots = self.slots[group : group + 1]
        segment, cut = self.cuts[group]
        level = fabric.level_of(domain)
        while fabric.splits(domain, level) or (segment and level > cut):
            first, last = fabric.inside(domain, level - 1)
            count = np.array([rest], dtype=np.int64)
            closed = self._closed(level - 1, (group,), [rest]) if segment else self.domains.nowhere
            inner = best_domain(
                rooms, slots, count, 0, first, last, fabric.home, fabric.above, self.touched, closed
            )  # fmt: skip
            if inner >= 0:
                domain, level = inner, level - 1
                continue
            if segment and level > cut:
                whole = in_segments(fabric, rooms[slots[0]], level - 1, cut, segment)
                whole = whole[first - fabric.offsets[level - 1] :][: last - first]
                full, takes = roomiest(rooms[slots[0]], whole, first, last, self.touched)
                used = self._fill(group, full, takes, used)
                self._follow(group)
                rest -= takes
                continue
            full = int(largest_domain(rooms, int(slots[0]), first, last, self.touched))
            takes = int(rooms[slots[0], full, R_TAKES])
            used = self._settle(group, full, takes, used)
            self._follow(group)
            rest -= takes
        return self._settle(group, domain, rest, used)

    def _settle(self, group: int, domain: int, count: int, used: int) -> int:
        """So many pods of a group on the nodes of a domain, as the policy says."""
        first, last = self.fabric.spans[domain].tolist()
        return self._put(group, self.fabric.walk, first, last, count, used)

    def _put(self, group: int, nodes: Table, first: int, last: int, count: int, used: int) -> int:
        snapshot = self.domains.snapshot
        kernel, params, by_node = self.domains.kernel(self.shape, group)
        state = snapshot.state
        return kernel(
            snapshot.table, snapshot.log, state.shapes.demands, self.shape.parts[group][1], self.domains.mix, params,
            nodes, first, last, count, by_node, self.domains.seed, self.salt, self.pieces[self.base :],
            used - self.base,
        ) + self.base  # fmt: skip

    def _follow(self, group: int) -> None:
        snapshot = self.domains.snapshot
        self.rooms.follow(
            int(self.slots[group]), snapshot.table, snapshot.log, snapshot.state.shapes.demands,
            self.shape.parts[group][1],
        )  # fmt: skip
