"""Placement of a gang: in which domain of the fabric, and how it is laid out there.

Of the domains of a level that hold the gang, it gets the one that best preserves large free blocks
(`domain_capacity.best_domain`). If no domain holds it, and the gang only prefers the level, it gets the narrowest wider
domain that holds it. In this domain the gang uses as few domains of the level below as possible: the largest first, and
the last as tight as possible.

For a gang of one group the answer is exact, even if it is divided into segments (`segments.py`). Several groups are
placed one after the other, and domains are tried in order until all groups are placed in one.

Sources: best fit of a required or preferred level as in Kueue's topology-aware scheduling (KEP-2724); the choice among
the fitting domains after E-Binpack of Kant, arXiv 2510.01256 (the exact rule is ours).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import move
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import GROUP, NODE, PODS, Allocation
from kant.placement.fits import mixed
from kant.placement.group_order import PLACED, place_groups
from kant.placement.pieces import PieceBuffer
from kant.placement.topology.domain_capacity import FITTING_PODS, FREE_MILLI, best_domain, follow
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.gang_kernel import next_stretch
from kant.placement.topology.index import CLUSTER, HBD_LEVEL
from kant.placement.topology.segments import fitting_in_segments, in_segments, roomiest

if TYPE_CHECKING:
    from kant.placement.preferred import PreferringGroup

ALONE = [0]
"""The order of a single group."""


class GangPlacement:
    """Places gangs of one shape, one after the other, in the domains of a topology."""

    def __init__(self, policy: DomainPolicy, shape: Shape, pieces: PieceBuffer) -> None:
        self.topology, self.capacity = policy.topology, policy.capacity
        self.table, self.log = policy.snapshot.table, policy.snapshot.log
        self.shapes = policy.snapshot.state.shapes
        self.typical_pods = policy.typical_pods
        self.seed = policy.seed
        self.shape = shape
        self.pieces = pieces
        self.narrowest = self._narrowest(policy)
        """The level at which the search for a domain begins."""
        flat = self.topology.flat  # then HBDs are the same domains as nodes
        self._levels = [
            level for level in range(self.narrowest, CLUSTER) if not (flat and level == HBD_LEVEL > self.narrowest)
        ]
        self.cuts = shape.cuts or ((),) * len(shape.parts)
        self.counts: Table = np.array([count for count, _ in shape.parts], dtype=np.int64)
        self.demands: Table = np.array([demand for _, demand in shape.parts], dtype=np.int64)
        self.milli = _milli_of_first(shape)
        """Total of milli-GPUs that must be free on the nodes that the first group may use."""
        self.slots: Table = self.demands  # slots of the domain capacity, once requested
        self._slots_of = -1  # `given_up` of the capacity when they were requested
        self._kernels = [
            policy.kernel(group, len(shape.parts), count) for group, count in enumerate(self.counts.tolist())
        ]
        self.puts = policy.policy.policy_for(0, len(shape.parts), shape.parts[0][0])[0]
        """The policy that chooses nodes for the first group."""
        self._preferring: list[PreferringGroup] | None = None
        if shape.ask.preferences and policy.preferring is not None:
            self._preferring = policy.preferring().groups(shape, policy.policy)
        self.occupied = self.topology.no_domain
        """1 for the domains in which the gang has pods."""
        self._plain = not shape.cuts
        """Whether the number of pods that fit in a domain is its plain capacity (without segments)."""
        self.at_once = len(self.counts) == 1 and not (
            shape.required or shape.cuts or shape.affinity or self._preferring
        )
        """Whether one compiled call places the gang; its pieces are then in the order of the fabric."""
        self._job_row = 0
        self._domain = -1  # the domain in which the gang is being placed
        self._ranges: dict[int, tuple[int, int]] = {}  # the pieces of each placed group
        self._used = 0
        self._failure: NoFit | None = None

    def _narrowest(self, policy: DomainPolicy) -> int:
        return policy.narrowest(self.shape)

    def begin(self, job_row: int, follows: bool = True) -> None:
        """Begin to place a gang that has no pods yet. With `follows`, first update the domain capacity."""
        self._job_row = job_row
        self.occupied = self.topology.no_domain
        if self._slots_of != self.capacity.given_up:
            self.slots = np.array(self.capacity.slots(self.demands.tolist()), dtype=np.int64)
            self._slots_of = self.capacity.given_up
        if follows:
            self._follow()

    def place(self, job_row: int, members: Sequence[Allocation]) -> int | NoFit:
        """Place a gang as its shape requests. Returns the rows of pieces used, or why it does not fit.

        `members` are the allocations of its affinity group. A gang that asks to be near them tries the domains that
        host members first, those with the most pods before others.
        """
        shape = self.shape
        self.begin(job_row, not self.at_once)
        if shape.affinity is not None and shape.affinity.near >= 0:
            found = self._place_near(members, shape.affinity.near)
            if found is not None:
                return found
        return self.place_required(shape.level) if shape.required else self.place_preferred()

    def extend(self, job_row: int, held: Allocation) -> int | NoFit:
        """Place additional pods of a gang that holds `held`: in its domain if it requires one, otherwise near it."""
        self.begin(job_row)
        domains = self.topology.domain_of[self.topology.position[held[:, NODE]]]
        self.mark_occupied(domains)
        return self.place_in(int(domains[0, self.shape.level])) if self.shape.required else self.place_preferred()

    def may_fit(self) -> bool:
        """Return whether some domain of the required level, or the cluster, holds each group alone."""
        self.begin(0)
        level = self.shape.level if self.shape.required else CLUSTER
        first, last = self.topology.offsets[level : level + 2]
        return self._best_domain(first, last, self.topology.no_domain) >= 0

    def missing(self) -> int:
        """Return how many pods of a gang of one group the cluster cannot hold."""
        self.begin(0)
        fitting = self.capacity.rows[self.slots[0], self.topology.offsets[CLUSTER], FITTING_PODS]
        return max(int(self.counts[0] - fitting), 0)

    def mark_occupied(self, domains: Table) -> None:
        """Mark these domains as holding pods of the gang."""
        self.occupied = self.topology.no_domain.copy()
        self.occupied[domains] = 1

    def _place_near(self, members: Sequence[Allocation], level: int) -> int | None:
        """Place the gang in a domain of `level` that hosts members, or in a domain of the required level inside it."""
        for domain in self._hosting(members, level):
            if self.shape.required and self.shape.level < level:
                found = self._place_in_best(self.shape.level, domain)[0]
            else:
                result = self.place_in(domain)
                found = None if isinstance(result, NoFit) else result
            if found is not None:
                return found
        return None

    def _hosting(self, members: Sequence[Allocation], level: int) -> list[int]:
        """Return the domains of a level that host members of the affinity group, first those with the most pods."""
        pods = np.zeros(self.capacity.domains, dtype=np.int64)
        for allocation in members:
            places = self.topology.position[allocation[:, NODE]]
            np.add.at(pods, self.topology.domain_of[places, level], allocation[:, PODS])
        return sorted(np.flatnonzero(pods).tolist(), key=lambda domain: (-pods[domain], domain))

    def place_preferred(self) -> int | NoFit:
        """Place the gang in one domain of the narrowest level with a fitting domain; the last level is the cluster."""
        if self.at_once:
            return self._place_at_once()
        whole = self.topology.offsets[CLUSTER]
        for group in range(len(self.counts)):
            plain = self.capacity.rows[self.slots[group], whole, FITTING_PODS]
            fitting = int(plain) if self._plain else self._fitting_in(group, whole)
            if fitting < self.counts[group]:
                return self._no_fit(group, fitting)
        for level in self._levels:
            found = self._place_in_best(level)[0]
            if found is not None:
                return found
        return self.place_in(whole)

    def place_required(self, level: int) -> int | NoFit:
        """Place the gang in one domain of `level`; or return how many pods the best domain would hold."""
        result, failures = self._place_in_best(level)
        if result is not None:
            return result
        first, last = self.topology.offsets[level : level + 2]
        fitting = np.stack([self._fitting(group, level, count) for group, count in enumerate(self.counts.tolist())])
        missing = np.maximum(self.counts[:, None] - fitting, 0)
        short = missing.sum(axis=0)
        best = int(np.argmin(short)) if last > first else -1
        if (
            best >= 0 and short[best] == 0 and not failures
        ):  # each group would fit in that domain alone, but its GPUs do not suffice for all groups together
            able = np.flatnonzero(short == 0)
            best = int(able[np.argmax(self.capacity.rows[self.slots[0], first + able, FREE_MILLI])])
            verdict = self.place_in(first + best)
            assert isinstance(verdict, NoFit)
            failures = [verdict]
        if failures:
            closest = min(failures, key=lambda failure: failure.pods - failure.fits)
            return self._no_fit(closest.group, closest.fits, level)
        group = int(np.argmax(missing[:, best] > 0)) if best >= 0 else 0
        return self._no_fit(group, int(fitting[group, best]) if best >= 0 else 0, level)

    def _no_fit(self, group: int, fits: int, level: int = CLUSTER) -> NoFit:
        """Return a NoFit: only `fits` pods of a group fit in the best domain of a required level; CLUSTER: anywhere."""
        count = int(self.counts[group])
        name = LEVELS[level] if level < CLUSTER else ""
        cuts = [(LEVELS[inner], segment) for segment, inner in self.cuts[group] if inner < level]
        if not cuts:
            return NoFit(group, count, fits, name)
        if cuts[0][1] == count:  # a child gang
            name = cuts.pop(0)[0]
        (each, segment), *further = cuts or [("", 0)]
        return NoFit(group, count, fits, name, segment, each, inner=tuple(further))

    def _fitting(self, group: int, level: int, pods: int) -> Table:
        """Return how many pods of a group fit in each domain of a level; exact for numbers up to `pods`."""
        cuts = self.cuts[group]
        rows = self.capacity.rows[self.slots[group]]
        if not cuts or level <= cuts[-1][1]:
            first, last = self.topology.offsets[level : level + 2]
            fitting: Table = rows[first:last, FITTING_PODS]
            return fitting
        return fitting_in_segments(self.topology, rows, level, cuts, pods)

    def _fitting_in(self, group: int, domain: int) -> int:
        """Return how many pods of a group fit in one domain."""
        level = int(self.topology.level_of[domain])
        return int(self._fitting(group, level, int(self.counts[group]))[domain - self.topology.offsets[level]])

    def _best_domain(self, first: int, last: int, failed: Table) -> int:
        """Return the domain in [first, last) that the gang should use, except those marked 1 in `failed`; -1: none."""
        topology = self.topology
        return best_domain(
            self.capacity.rows, self.slots, self.counts, self.milli, first, last, topology.domain_of,
            topology.ancestors, self.occupied, failed,
        )  # fmt: skip

    def _not_whole(self, level: int) -> Table:
        """Return 1 for each domain of a level that has no room for the gang in whole segments, 0 for all others."""
        return self._closed(level, range(len(self.counts)), self.counts.tolist())

    def _closed(self, level: int, groups: range | tuple[int, ...], pods: list[int]) -> Table:
        """Return 1 for each domain of a level that has no room for the groups in whole segments, 0 for all others."""
        closed = self.topology.no_domain
        first, last = self.topology.offsets[level : level + 2]
        for group, count in zip(groups, pods, strict=True):
            cuts = self.cuts[group]
            if cuts and level > cuts[-1][1]:
                closed = closed.copy()
                closed[first:last] |= self._fitting(group, level, count) < count
        return closed

    def _place_in_best(self, level: int, inside: int = -1) -> tuple[int | None, list[NoFit]]:
        """Place the gang in the best domain of `level` in which it can be placed; or return how each attempt failed.

        With `inside`, only the domains inside that wider domain are tried.
        """
        failures: list[NoFit] = []
        topology = self.topology
        failed = topology.no_domain if self._plain else self._not_whole(level)
        first, last = topology.inside(inside, level) if inside >= 0 else topology.offsets[level : level + 2]
        while True:
            domain = best_domain(
                self.capacity.rows, self.slots, self.counts, self.milli, first, last, topology.domain_of,
                topology.ancestors, self.occupied, failed,
            )  # fmt: skip
            if domain < 0:
                return None, failures
            result = self.place_in(domain)
            if not isinstance(result, NoFit):
                return result, failures
            failures.append(result)
            if failed is self.topology.no_domain:
                failed = failed.copy()
            failed[domain] = 1

    def ranked(self, level: int) -> Iterator[int]:
        """Yield the domains of `level` that hold the gang, the best first. Places nothing."""
        first, last = self.topology.offsets[level : level + 2]
        passed = (self.topology.no_domain if self._plain else self._not_whole(level)).copy()
        while (domain := self._best_domain(first, last, passed)) >= 0:
            yield domain
            passed[domain] = 1

    def place_in(self, domain: int) -> int | NoFit:
        """Place all groups in one domain, or none of them."""
        self._domain = domain
        groups = len(self.counts)
        if self._attempt(ALONE) == PLACED if groups == 1 else place_groups(groups, self._attempt):
            return self._used
        assert self._failure is not None
        return self._failure

    def _attempt(self, order: list[int]) -> int:
        used, before, domain = 0, self.occupied, self._domain
        for group in order:
            if used:
                self._follow(group)
                self._mark_pieces(before, used)
            pods = int(self.counts[group])
            plain = self.capacity.rows[self.slots[group], domain, FITTING_PODS]
            fitting = int(plain) if self._plain else self._fitting_in(group, domain)
            if fitting < pods:
                if used:
                    move(self.table, self.log, self.pieces.rows[:used], self.shapes.demands, False)
                    self._follow()
                self.occupied = before
                self._failure = self._no_fit(group, fitting, int(self.topology.level_of[domain]))
                return group
            begin, used = used, self._fill(group, domain, pods, used)
            if self.shape.numbers[group]:
                self.pieces.rows[begin:used, GROUP] = self.shape.numbers[group]
            self._ranges[group] = (begin, used)
        self._used = used
        return PLACED

    def _mark_pieces(self, before: Table, used: int) -> None:
        """Mark the domains in which the gang had pods before, and the domains of its first pieces."""
        self.occupied = before.copy()
        self.occupied[self.topology.domain_of[self.topology.position[self.pieces.rows[:used, NODE]]]] = 1

    def parts(self) -> list[Table]:
        """Return the pieces of each group, in the job's order."""
        return [self.pieces.rows[slice(*self._ranges[group])] for group in range(len(self.counts))]

    def _place_at_once(self) -> int | NoFit:
        """Place the gang as `place_preferred` does, in one call."""
        capacity, kernel = self.capacity, self._kernels[0]
        used = kernel.gang(
            self.table, self.log, self.shapes.demands, self.demands.item(0), self.typical_pods, kernel.params,
            self.topology.fabric, capacity.rows, capacity.cursors, self.slots.item(0), capacity.closed, self.narrowest,
            self.milli, self.counts.item(0), kernel.by_node,
            mixed(self.seed, self._job_row) if kernel.fresh else 0, self.occupied, self.pieces.rows, 0,
        )  # fmt: skip
        if used < 0:
            return self._no_fit(0, -1 - used)
        if self.shape.numbers[0]:
            self.pieces.rows[:used, GROUP] = self.shape.numbers[0]
        return used

    def row(self, policy: int) -> tuple[int, ...]:
        """Return the input row of the compiled function in `group_kernel.py`, which places the gang by `policy`."""
        self.begin(0)
        (count, demand), by_node = self.shape.parts[0], self._kernels[0].by_node
        slot, number = self.slots.item(0), self.shape.numbers[0]
        return count, demand, policy, by_node, slot, number, 1, self.narrowest, self.milli

    def _fill(self, group: int, domain: int, rest: int, used: int) -> int:
        """Place `rest` pods of a group, which must fit in `domain`, on the fewest domains of each level below.

        The levels go down to the leaf or HBD, and in any case to the level by which the group is divided.
        """
        topology, rows, cuts = self.topology, self.capacity.rows, self.cuts[group]
        slots, slot = self.slots[group : group + 1], self.slots.item(group)
        while cuts and topology.level_of[domain] > cuts[-1][1]:
            first, last = topology.inner[domain].tolist()
            level = int(topology.level_of[domain]) - 1
            count = np.array([rest], dtype=np.int64)
            inner = best_domain(
                rows, slots, count, 0, first, last, topology.domain_of, topology.ancestors, self.occupied,
                self._closed(level, (group,), [rest]),
            )  # fmt: skip
            if inner >= 0:
                domain = inner
                continue
            whole = in_segments(topology, rows[slot], level, cuts)
            whole = whole[first - topology.offsets[level] :][: last - first]
            full, fitting = roomiest(rows[slot], whole, first, last, self.occupied)
            used = self._fill(group, full, fitting, used)
            self._follow(group)
            rest -= fitting
        while rest:
            full, domain = next_stretch(rows, slot, domain, rest, topology.fabric, self.occupied)
            pods = rest if full == domain else rows.item(slot, full, FITTING_PODS)
            used = self._put(group, topology.node_order[slice(*topology.domain_range[full].tolist())], pods, used)
            rest -= pods
            if rest:
                self._follow(group)
        return used

    def _put(self, group: int, nodes: Table, count: int, used: int) -> int:
        """Place `count` pods of a group on these nodes by the policy."""
        if self._preferring is not None:
            return self._preferring[group].put(nodes, count, self.pieces, used, self._job_row)
        kernel = self._kernels[group]
        drawn = mixed(self.seed, self._job_row) if kernel.fresh else 0
        return kernel.run(
            self.table, self.log, self.shapes.demands, self.shape.parts[group][1], self.typical_pods, kernel.params,
            nodes, count, kernel.by_node, drawn, self.pieces.rows, used,
        )  # fmt: skip

    def _follow(self, group: int = -1) -> None:
        """Update the domain capacity of a group, or of all groups. The cost depends on the changed nodes."""
        topology, capacity, slots, demands = self.topology, self.capacity, self.slots, self.demands
        if len(slots) == 1:
            if capacity.cursors.item(slots.item(0)) == self.log.item(0):
                return
        elif group >= 0:
            slots, demands = slots[group : group + 1], demands[group : group + 1]
        follow(
            self.table, self.log, self.shapes.demands, demands, topology.fabric, capacity.rows, capacity.cursors, slots,
            capacity.closed,
        )  # fmt: skip


def _milli_of_first(shape: Shape) -> int:
    """Return the milli-GPUs of the groups that share the first group's nodes: those that may use no other nodes."""
    roles = shape.ask.roles or (shape.pool_bits,) * len(shape.groups)
    sets = shape.ask.node_sets or ("",) * len(shape.groups)
    return sum(
        group.count * group.demand.gpu_milli
        for group, role, own in zip(shape.groups, roles, sets, strict=True)
        if not role & ~roles[0] and sets[0] in ("", own)
    )
