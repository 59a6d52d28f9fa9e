"""A place for each pod of a gang such that the rules among them are kept: a search that finds one where there is one.

Pods of one kind are told apart by no rule, and nodes with equal room and equal domains are one class of which the first
that is empty stands for all. So a cluster of equal nodes costs what its domains cost. The search goes pod by pod, to
the emptiest domain where pods are spread, else where others of the gang are, and remembers what has failed. It is exact
up to a number of steps, after which it gives up.

A placement keeps the rules if kube-scheduler could have made it, pod by pod in some order. Sources: its plugins
InterPodAffinity and PodTopologySpread; conflict-directed search is that of constraint programming (F. Rossi, P. van
Beek, T. Walsh, Handbook of Constraint Programming, 2006, chapters 4 and 10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kant.kube.reconcile.rule_problem import Apart, Even, Near, Problem, Room
from kant.kube.translate.levels import HOSTNAME

STEPS = 5_000
"""Places that are tried at most, beside one for each pod."""


@dataclass(slots=True)
class Answer:
    """`nodes` has the node of each pod, None where there is no such placement; or where none was found in the steps
    that a search may take (`gave_up`)."""

    nodes: list[str] | None
    gave_up: bool = False


def find_places(
    problem: Problem, will_do: Callable[[list[str]], bool] = lambda nodes: True, steps: int = STEPS
) -> Answer:
    """A placement that keeps all rules, and for which `will_do`. Deterministic."""
    return _Search(problem).run(will_do, steps + len(problem.pods))


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rooms = dict(problem.rooms)
        self.order = self._order()
        self.left = Counter(problem.pods)
        self.placed: dict[str, Counter[int]] = {}  # kinds on the nodes that are in use
        self.inside: dict[str, dict[str, Counter[int]]] = {}  # kinds by label and domain
        keys = [one.key for one in problem.apart] + [one.key for one in problem.near]
        self.inside |= {key: {} for key in (*keys, *(one.key for one in problem.even))}
        self.spread = [Counter[str](one.there) for one in problem.even]
        self.classes: dict[tuple[object, ...], int] = {}
        self.class_of: dict[str, int] = {}
        self.members: list[list[str]] = []
        self.begun: list[int] = []  # how many nodes of a class are in use: always its first
        self.total = Counter(problem.pods)
        self.taken: dict[tuple[int, int], int] = {}  # pods of a kind that an empty node of a class takes
        self.held: dict[tuple[int, str], Counter[str]] = {}  # and the nodes of each domain of a label
        self._classify()
        self.fewest = [self._highest_minimum(one) for one in problem.even]

    def _order(self) -> list[int]:
        """Pods in the order of the search: who is wanted before who wants, then the largest with the least choice."""
        problem = self.problem
        wants = {kind for one in problem.near for kind in one.carriers - one.wanted}

        def rank(pod: int) -> tuple[object, ...]:
            kind = problem.pods[pod]
            asked = problem.kinds[kind].demand
            return kind in wants, len(problem.allowed[kind]), -asked.gpu_milli, -asked.cpu, -asked.memory, kind, pod

        return sorted(range(len(problem.pods)), key=rank)

    def _classify(self) -> None:
        problem = self.problem
        keys = sorted(key for key in self.inside if key != HOSTNAME)
        near = [one for one in problem.near if one.key == HOSTNAME]
        even = [one for one in problem.even if one.key == HOSTNAME]
        used = frozenset[str]().union(*problem.allowed) if problem.allowed else frozenset()
        for node in sorted(used, key=lambda name: (name not in problem.liked, name)):
            told = (
                *(problem.domain(key, node) for key in keys),
                *(node in one.there for one in near),
                *(one.there.get(node, 0) for one in even),
            )
            may = tuple(node in names for names in problem.allowed)
            among = tuple(node in one.among for one in problem.even)
            key = (problem.rooms[node].key, told, may, among, node in problem.liked)
            index = self.classes.setdefault(key, len(self.classes))
            if index == len(self.members):
                self.members.append([])
                self.begun.append(0)
            self.members[index].append(node)
            self.class_of[node] = index

    # --- what can never be ----------------------------------------------------------------------------------------

    def _takes(self, kind: int, node: str) -> int:
        """How many pods of a kind an empty node takes, as far as that kind is concerned."""
        at = kind, self.class_of[node]
        if at not in self.taken:
            problem, most = self.problem, self.total[kind] if node in self.problem.allowed[kind] else 0
            if any(one.key == HOSTNAME and kind in one.one & one.other for one in problem.apart):
                most = min(most, 1)
            room, count = problem.rooms[node], 0
            while count < most and room.fits(problem.kinds[kind]):
                room, count = room.less(problem.kinds[kind]), count + 1
            self.taken[at] = count
        return self.taken[at]

    def _capacity(self, kind: int, key: str) -> Counter[str]:
        """How many pods of a kind the nodes of each domain of a label take, each node by itself."""
        if (kind, key) not in self.held:
            found = self.held[kind, key] = Counter[str]()
            for node in self.class_of:
                found[self.problem.domain(key, node) or ""] += self._takes(kind, node)
        return self.held[kind, key]

    def _highest_minimum(self, one: Even) -> int:
        """No placement has more pods than this in its emptiest domain."""
        domains = {domain: one.there.get(domain, 0) for domain in one.among.values()}
        if len(domains) < one.least or not domains:
            return 0
        total = sum(domains.values()) + sum(self.left[kind] for kind in one.counted)
        for node, domain in one.among.items():
            if node in self.class_of:
                domains[domain] += sum(self._takes(kind, node) for kind in one.counted)
        return min(min(domains.values()), total // len(domains))

    def _is_hopeless(self) -> bool:
        """Whether some kind finds too little room by itself, or in the domains that a rule leaves it."""
        for kind, count in self.left.items():
            if self._capacity(kind, HOSTNAME).total() < count:
                return True
            for one in self.problem.near:
                takes = self._capacity(kind, one.key)
                bound = kind in one.carriers and one.there and one.wanted <= one.carriers
                if bound and sum(takes[domain] for domain in one.there) < count:
                    return True
        if any(self._has_too_few_domains(one) for one in self.problem.apart):
            return True
        even = zip(self.problem.even, self.fewest, strict=True)
        return any(self._spreads_too_few(one, fewest) for one, fewest in even)

    def _has_too_few_domains(self, one: Apart) -> bool:
        """Whether pods of one kind that keep apart are more than the domains that take any."""
        for kind in one.one & one.other:
            takes = self._capacity(kind, one.key)
            anywhere = takes[""]  # without the label nobody is in one domain with another
            if sum(count > 0 for domain, count in takes.items() if domain) + anywhere < self.total[kind]:
                return True
        return False

    def _spreads_too_few(self, one: Even, fewest: int) -> bool:
        """Whether all domains together, each no fuller than allowed, take fewer pods than there are."""
        kinds, room = one.carriers & one.counted, 0
        for domain in set(one.among.values()):
            takes = sum(self._capacity(kind, one.key)[domain] for kind in kinds)
            room += max(min(takes, fewest + one.skew - one.there.get(domain, 0)), 0)
        return room < sum(self.left[kind] for kind in kinds)

    # --- the search -----------------------------------------------------------------------------------------------

    def run(self, will_do: Callable[[list[str]], bool], steps: int) -> Answer:
        problem, order = self.problem, self.order
        if self._is_hopeless():
            return Answer(None)
        failed: set[tuple[object, ...]] = set()
        chosen: list[tuple[str, Room]] = []  # the node of each pod so far, and its room before
        tries = [self._candidates(problem.pods[order[0]])]
        while tries:
            node = next(tries[-1], None)
            if node is None:
                tries.pop()
                failed.add(self._signature())
                if chosen:
                    self._undo(problem.pods[order[len(chosen) - 1]], *chosen.pop())
                continue
            if steps <= 0:
                return Answer(None, gave_up=True)
            steps -= 1
            kind = problem.pods[order[len(chosen)]]
            chosen.append((node, self._do(kind, node)))
            if len(chosen) == len(order):
                nodes = [name for _, (name, _) in sorted(zip(order, chosen, strict=True), key=lambda one: one[0])]
                if self._is_kept() and will_do(nodes):
                    return Answer(nodes)
            elif not failed or self._signature() not in failed:
                tries.append(self._candidates(problem.pods[order[len(chosen)]]))
                continue
            self._undo(kind, *chosen.pop())
        return Answer(None)

    def _signature(self) -> tuple[object, ...]:
        """Equal where the same kinds are on nodes of the same classes: what comes after is equal, too."""
        return tuple(sorted((self.class_of[node], tuple(sorted(own.items()))) for node, own in self.placed.items()))

    def _do(self, kind: int, node: str) -> Room:
        before = self.rooms[node]
        self.rooms[node] = before.less(self.problem.kinds[kind])
        if node not in self.placed:
            self.placed[node] = Counter()
            self.begun[self.class_of[node]] += 1
        self._count(kind, node, 1)
        return before

    def _undo(self, kind: int, node: str, before: Room) -> None:
        self.rooms[node] = before
        self._count(kind, node, -1)
        if not self.placed[node]:
            del self.placed[node]
            self.begun[self.class_of[node]] -= 1

    def _count(self, kind: int, node: str, by: int) -> None:
        self.left[kind] -= by
        _add(self.placed[node], kind, by)
        for key, domains in self.inside.items():
            domain = self.problem.domain(key, node)
            if domain is not None:
                _add(domains.setdefault(domain, Counter()), kind, by)
        for one, counts in zip(self.problem.even, self.spread, strict=True):
            if kind in one.counted and node in one.among:
                counts[one.among[node]] += by

    def _candidates(self, kind: int) -> Iterator[str]:
        """The nodes that a pod of this kind may have next, the best first."""
        fresh = [own[begun] for own, begun in zip(self.members, self.begun, strict=True) if begun < len(own)]
        asked, problem = self.problem.kinds[kind], self.problem
        found = []
        for node in (*self.placed, *fresh):
            if node in problem.allowed[kind] and self.rooms[node].fits(asked) and self._may_be(kind, node):
                found.append((self._rank(kind, node), node))
        return iter([node for _, node in sorted(found)])

    def _rank(self, kind: int, node: str) -> tuple[object, ...]:
        room, problem = self.rooms[node], self.problem
        levels = [
            counts[domain]
            for one, counts in zip(problem.even, self.spread, strict=True)
            if kind in one.counted and (domain := problem.domain(one.key, node)) is not None
        ]
        return levels, node not in problem.liked, node not in self.placed, sum(room.devices), room.cpu

    def _may_be(self, kind: int, node: str) -> bool:
        """Whether no rule is broken for good by a pod of this kind on a node."""
        problem = self.problem
        for one in problem.apart:
            domain = problem.domain(one.key, node)
            there = self.inside[one.key].get(domain) if domain is not None else None
            if there and (
                (kind in one.one and not one.other.isdisjoint(there))
                or (kind in one.other and not one.one.isdisjoint(there))
            ):
                return False
        if not all(self._may_be_near(one, kind, node) for one in problem.near if kind in one.carriers):
            return False
        for even, counts, fewest in zip(problem.even, self.spread, self.fewest, strict=True):
            if kind in even.carriers:
                domain = problem.domain(even.key, node)
                if domain is None or counts[domain] + (kind in even.counted) - fewest > even.skew:
                    return False
        return True

    def _may_be_near(self, one: Near, kind: int, node: str) -> bool:
        domain = self.problem.domain(one.key, node)
        if domain is None:
            return False
        others = one.wanted - one.carriers
        inside = self.inside[one.key]
        if domain in one.there or not others.isdisjoint(inside.get(domain, ())):
            return True
        if any(self.left[other] for other in others):
            return True  # one may still come
        if one.there:
            return False
        wanted = kind in one.wanted or not one.wanted.isdisjoint(inside.get(domain, ()))
        if not wanted and not any(self.left[other] for other in one.wanted):
            return False
        first = self._first_domain(one)
        return domain == first or (first is None and self._holds_all(one, domain))

    def _holds_all(self, one: Near, domain: str) -> bool:
        """Whether a domain may hold all pods that have none beside them but their own kind, where all are such."""
        alone = one.wanted <= one.carriers
        return not alone or all(self._capacity(kind, one.key)[domain] >= self.total[kind] for kind in one.carriers)

    def _first_domain(self, one: Near) -> str | None:
        """The domain of those that have none beside them but their own kind: all such are in one."""
        others = one.wanted - one.carriers
        for domain, there in self.inside[one.key].items():
            alone = domain not in one.there and others.isdisjoint(there)
            if alone and not one.carriers.isdisjoint(there):
                return domain
        return None

    def _is_kept(self) -> bool:
        """Whether all rules are kept, now that every pod has its node."""
        for one in self.problem.near:
            others, first = one.wanted - one.carriers, list[str]()
            for domain, there in self.inside[one.key].items():
                if one.carriers.isdisjoint(there) or domain in one.there or not others.isdisjoint(there):
                    continue
                first.append(domain)
                if one.there or one.wanted.isdisjoint(there) or len(first) > 1:
                    return False
        for even, counts in zip(self.problem.even, self.spread, strict=True):
            domains = set(even.among.values())
            fewest = min((counts[domain] for domain in domains), default=0) if len(domains) >= even.least else 0
            for domain, there in self.inside[even.key].items():
                if not even.carriers.isdisjoint(there) and counts[domain] - fewest > even.skew:
                    return False
        return True


def _add(counts: Counter[int], kind: int, by: int) -> None:
    counts[kind] += by
    if not counts[kind]:
        del counts[kind]
