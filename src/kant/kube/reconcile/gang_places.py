"""Places for gangs whose pods have rules among each other: affinity, anti-affinity and spreading by any label.

The core chooses nodes by amounts, pools and levels of the fabric. Where its choice breaks a rule of the pods, they get
other nodes in the same transaction, of what is open to the job (`kant.scheduler.open_space`), or the gang waits until
something changes. `rule_search` has the search; here the objects become its problem (`rule_problem`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import NamedTuple

from kant.cluster import columns as c
from kant.kube.objects.views import Pod
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.reconcile.pod_capacity import PodCapacity
from kant.kube.reconcile.rule_problem import Apart, Even, Kind, Near, Problem, Room
from kant.kube.reconcile.rule_search import Answer, find_places
from kant.kube.reconcile.slots import FreeCapacity, Member, Slot, slot_for, table_of
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.groups import NODE_POOL
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.neighbours import Rule, Spread, ports_of, rules_of, spreads_of, wanted_beside
from kant.kube.translate.pods import model_asked, whole_selection
from kant.kube.translate.resources import others_of
from kant.live.core import Core
from kant.model.job import Demand, Job
from kant.model.placement import Allocation
from kant.scheduler.open_space import OpenSpace

LEVEL = "\0level"
"""Stands for a label: the level of the fabric of which one domain has to hold the gang."""

VOLUMES = "volumes of "
"""Before the name of a driver: volumes that a node may attach, as if they were a resource of it."""


class Places(NamedTuple):
    """An allocation of a whole gang, and the places of its pods that are not bound."""

    allocation: Allocation
    slots: list[Slot]


def has_rules(pods: Sequence[Pod]) -> bool:
    """Whether pods say beside whom they have to run, or must not, or how evenly they spread."""
    return any(rules_of(pod) or wanted_beside(pod) or spreads_of(pod) for pod in pods)


def are_kept_by_core(job: Job, pods: Sequence[Pod]) -> bool:
    """Whether the job itself says all that its pods demand of each other."""
    left = [one.like for pod in pods for one in spreads_of(pod)]
    left += [rule for pod in pods for rule in wanted_beside(pod)] if not job.within_required else []
    left += [rule for pod in pods for rule in rules_of(pod)] if not job.apart_required else []
    return not any(rule.is_about(pod) for rule in dict.fromkeys(left) for pod in pods)


def are_unlike(members: Sequence[Member]) -> bool:
    """Whether pods with equal GPUs, CPU and memory differ in what the core does not count, so that it takes them for
    each other."""
    found: dict[tuple[int, int, int], dict[str, int]] = {}
    return any(found.setdefault(_amounts(one), others_of(one.pod.spec)) != others_of(one.pod.spec) for one in members)


def _amounts(member: Member) -> tuple[int, int, int]:
    return member.demand.gpus, member.demand.cpu, member.demand.memory


def are_mixed(members: Sequence[Member], selects: Callable[[Pod], object]) -> bool:
    """Whether pods with equal amounts accept other nodes than each other, be it for labels or for their volumes."""
    first = members[0].pod if members else None
    if first is None or all(_wishes(one.pod) == _wishes(first) for one in members):
        return False
    found: dict[tuple[int, int, int], object] = {}
    asked = [(_amounts(one), (selects(one.pod), model_asked(one.pod))) for one in members]
    return any(found.setdefault(amounts, own) != own for amounts, own in asked)


def _wishes(pod: Pod) -> tuple[object, ...]:
    """What may tell apart the nodes that pods accept."""
    spec, pool = pod.spec, (pod.metadata.labels or {}).get(NODE_POOL)
    return spec.node_selector, spec.affinity, spec.tolerations, spec.volumes, spec.resource_claims, pool


class GangPlaces:
    """Finds other places for a gang that the core is about to start."""

    def __init__(self, core: Core, translation: Translation, pod_capacity: PodCapacity, names: Sequence[str]) -> None:
        self.core = core
        self.translation = translation
        self.filters: NodeFilters = translation.filters
        self.pod_capacity = pod_capacity
        self.names = names
        self._seconds = 0.0

    def take_seconds(self) -> float:
        """How long searches have taken since somebody asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def find(
        self,
        job: str,
        members: Sequence[Member],
        liked: Collection[str],
        going: Collection[str] = (),
        freed: Sequence[Allocation] = (),
        taken: Sequence[Allocation] = (),
        held: Sequence[Allocation] = (),
    ) -> Places | str:
        """Places for the pods that wait, beside those that it holds; or in one sentence why there are none.

        `liked` are the nodes that the core has chosen. Pods in `going` will be gone and have `freed` what they hold;
        what is `taken` is to be somebody else's.
        """
        began = monotonic()
        found = self._find(job, members, liked, going, freed, taken, held)
        self._seconds += monotonic() - began
        return found

    def _find(
        self,
        job: str,
        members: Sequence[Member],
        liked: Collection[str],
        going: Collection[str],
        freed: Sequence[Allocation],
        taken: Sequence[Allocation],
        held: Sequence[Allocation],
    ) -> Places | str:
        pods, gave_up = [member.pod for member in members], False
        row = self.core.state.rows[job]
        for space in self.core.open_space(row, freed, (*taken, *held)):
            problem = self._problem(row, members, space, liked, going)

            def will_do(nodes: list[str]) -> bool:
                return not self.filters.check(list(zip(nodes, pods, strict=True)), going)

            answer = find_places(problem, will_do)
            if answer.nodes is not None:
                return self._places(row, members, answer, space, held)
            gave_up = gave_up or answer.gave_up
        if (left := sum(max(self.pod_capacity.left(name), 0) for name in self.core.state.node_index)) < len(pods):
            return f"no free places are enough for all pods of its gang: the nodes may have {left} more pods"
        if not has_rules(pods):
            what = ", ".join(dict.fromkeys(f"{number} of {name}" for pod in pods for name, number in self._others(pod)))
            what = f" ({what})" if what else ", each on nodes with the labels and volumes that it asks for"
            return f"no free places are enough for all pods of its gang{what}"
        what = ", ".join(dict.fromkeys(word for pod in pods for word in _words(pod)))
        if gave_up:
            return f"no places that keep the rules among the pods of its gang were found in time ({what})"
        return f"no free places keep the rules among the pods of its gang ({what})"

    def _places(
        self, row: int, members: Sequence[Member], answer: Answer, space: OpenSpace, held: Sequence[Allocation]
    ) -> Places:
        """The places that the search has found, group by group in the order of the job."""
        assert answer.nodes is not None
        groups = [group.demand for group in self.core.state.shape_of(row).groups]
        free, index, slots = FreeCapacity(space.table), self.core.state.node_index, list[Slot]()
        pieces = [piece for allocation in held for piece in allocation.tolist()]
        placed = sorted(enumerate(members), key=lambda one: (groups.index(one[1].demand), one[0]))
        for at, member in placed:
            node = answer.nodes[at]
            piece = free.take(index[node], member.demand, group=groups.index(member.demand))
            pieces.append(piece)
            slots.append(slot_for(node, member, piece[2]))
        return Places(table_of(pieces), slots)

    # --- the problem ----------------------------------------------------------------------------------------------

    def _problem(
        self, row: int, members: Sequence[Member], space: OpenSpace, liked: Collection[str], going: Collection[str]
    ) -> Problem:
        pods = [member.pod for member in members]
        theirs = self.filters.neighbours.rules_in_force()
        own = dict.fromkeys(
            rule
            for pod in pods
            for rule in (*rules_of(pod), *wanted_beside(pod), *(one.like for one in spreads_of(pod)))
        )
        told = (*own, *(rule for rule in theirs if rule not in own))
        kind_of: dict[tuple[object, ...], int] = {}
        kinds, first, numbers = list[Kind](), list[Member](), list[int]()
        for member in members:
            pod = member.pod
            key = (
                member.demand,
                self._others(pod),
                ports_of(pod.spec),
                self.translation.selects(pod),
                model_asked(pod),
                rules_of(pod),
                wanted_beside(pod),
                spreads_of(pod),
                tuple(rule.is_about(pod) for rule in told),
            )
            number = kind_of.setdefault(key, len(kind_of))
            if number == len(kinds):
                kinds.append(Kind(member.demand, self._others(pod), ports_of(pod.spec)))
                first.append(member)
            numbers.append(number)
        one_of = [member.pod for member in first]
        groups = [group.demand for group in self.core.state.shape_of(row).groups]
        allowed = [self._allowed(member, space, groups, going) for member in first]
        near = self._near(one_of, going)
        domains = self._domains({rule.key for rule in own})
        if space.domains is not None:
            domains[LEVEL] = {name: str(space.domains[at]) for at, name in enumerate(self.names)}
            every = frozenset(range(len(kinds)))
            near.append(Near(LEVEL, every, every, frozenset()))
        used = frozenset[str]().union(*allowed)
        resources = {name for kind in kinds for name, _ in kind.others}
        rooms = {name: self._room(name, space, resources, going) for name in self.names if name in used}
        apart, even = self._apart(one_of), self._even(one_of, going)
        return Problem(kinds, numbers, rooms, domains, allowed, apart, near, even, frozenset(liked))

    def _allowed(
        self, member: Member, space: OpenSpace, groups: Sequence[Demand], going: Collection[str]
    ) -> frozenset[str]:
        """The nodes that take a pod as far as those are concerned who are there."""
        admitted = space.admits[groups.index(member.demand)]
        return frozenset(
            name
            for at, name in enumerate(self.names)
            if admitted[at]
            and self.translation.admits(member.pod, name)
            and self.filters.neighbours.conflict(member.pod, name, (), going) is None
        )

    def _room(self, node: str, space: OpenSpace, resources: Collection[str], going: Collection[str]) -> Room:
        at = self.core.state.node_index[node]
        row = space.table[at]
        there = self.filters.neighbours.on(node, going)
        return Room(
            row[c.DEVICES : c.DEVICES + c.devices_of(space.table)].tolist(),
            int(row[c.CPU_FREE]),
            int(row[c.MEMORY_FREE]),
            {name: self._free(node, name, going) for name in sorted(resources)},
            frozenset(port for pod in there for port in ports_of(pod.spec)),
            self.pod_capacity.left(node) + sum(uid in going for uid in self.filters.mirror.on_node.get(node, ())),
        )

    def _others(self, pod: Pod) -> tuple[tuple[str, int], ...]:
        """What a pod takes of its node that the core does not count; volumes by their driver."""
        volumes = {f"{VOLUMES}{driver}": len(own) for driver, own in self.filters.csi_volumes.wanted(pod).items()}
        return tuple(sorted((others_of(pod.spec) | volumes).items()))

    def _free(self, node: str, name: str, going: Collection[str]) -> int:
        if name.startswith(VOLUMES):
            return self.filters.csi_volumes.left(node, name.removeprefix(VOLUMES), going)
        return self.filters.amounts.free(node, name, going)

    def _domains(self, keys: Collection[str]) -> dict[str, dict[str, str]]:
        nodes = self.filters.mirror.nodes
        found: dict[str, dict[str, str]] = {}
        for key in sorted(set(keys) - {HOSTNAME}):
            named = {name: (view.metadata.labels or {}).get(key) for name, view in nodes.items()}
            found[key] = {name: domain for name, domain in named.items() if domain is not None}
        return found

    def _apart(self, one_of: Sequence[Pod]) -> list[Apart]:
        carried = _carried(one_of, rules_of)
        return [Apart(rule.key, kinds, _about(rule, one_of)) for rule, kinds in carried.items()]

    def _near(self, one_of: Sequence[Pod], going: Collection[str]) -> list[Near]:
        found = []
        for rule, kinds in _carried(one_of, wanted_beside).items():
            there = self.filters.companions.count(rule, (), going)
            found.append(Near(rule.key, kinds, _about(rule, one_of), frozenset(name for name in there if there[name])))
        return found

    def _even(self, one_of: Sequence[Pod], going: Collection[str]) -> list[Even]:
        """One for each constraint and each choice of nodes among which its pods are spread."""
        companions, found = self.filters.companions, list[Even]()
        carried: dict[tuple[Spread, object], list[int]] = {}
        for kind, pod in enumerate(one_of):
            for spread in spreads_of(pod):
                carried.setdefault((spread, whole_selection(pod)), []).append(kind)
        for (spread, _), kinds in carried.items():
            pod = one_of[kinds[0]]
            among = companions.eligible(spread, pod)
            there = companions.count(spread.like, (), going, among)
            counted = _about(spread.like, one_of)
            found.append(Even(spread.like.key, frozenset(kinds), counted, there, among, spread.skew, spread.least))
        return found


def _carried(one_of: Sequence[Pod], rules: Callable[[Pod], Sequence[Rule]]) -> dict[Rule, frozenset[int]]:
    """Which kinds have each rule."""
    found: dict[Rule, list[int]] = {}
    for kind, pod in enumerate(one_of):
        for rule in rules(pod):
            found.setdefault(rule, []).append(kind)
    return {rule: frozenset(kinds) for rule, kinds in found.items()}


def _about(rule: Rule, one_of: Sequence[Pod]) -> frozenset[int]:
    return frozenset(kind for kind, pod in enumerate(one_of) if rule.is_about(pod))


def _words(pod: Pod) -> list[str]:
    """The rules of a pod, in the words of its spec."""
    words = [f"podAntiAffinity by {rule.key}" for rule in rules_of(pod)]
    words += [f"podAffinity by {rule.key}" for rule in wanted_beside(pod)]
    return words + [f"topologySpreadConstraints by {one.like.key}" for one in spreads_of(pod)]


__all__ = ["GangPlaces", "Places", "are_kept_by_core", "has_rules"]
