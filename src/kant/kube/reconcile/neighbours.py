"""Pods beside each other: whether one may run at a node, by its own anti-affinity and by that of those who are there.

Rules that reach beyond a node are answered by the domains of the pods that they are about, found once for each version
of the mirror; so a start costs what is on its own node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import Pod
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.neighbours import Rule, apart_group, domain_of, own_kind, rules_of

NOBODY: Collection[str] = frozenset()
Placed = Sequence[tuple[str, Pod]]
"""Pods, and the nodes that they are to have."""

Domains = dict[str, list[Pod]]


class Neighbours:
    """`promised` has, by node, the uids of pods that are to be bound there; `leaving` those that will be gone then."""

    def __init__(self, mirror: Mirror, scheduler: str) -> None:
        self.mirror = mirror
        self.scheduler = scheduler
        self.promised: dict[str, dict[str, None]] = {}
        self.leaving: Mapping[str, Mapping[str, None]] = {}
        self.promises: list[tuple[str, str]] = []  # nodes and pods in the order in which that came to be
        self.forgotten = 0  # how often it began anew
        self._wide: dict[str, str] = {}  # pods that are promised a node, and have rules that reach beyond it
        self._ruled: set[str] = set()  # nodes that are promised to pods with rules
        self._version = -1
        self._about: dict[Rule, Domains] = {}
        self._carriers: dict[Rule, Domains] = {}

    def promise(self, node: str, pod: str) -> None:
        """A pod is to be bound to a node."""
        there = self.promised.setdefault(node, {})
        if pod not in there:
            self.promises.append((node, pod))
        there[pod] = None
        found = self.mirror.pods.get(pod)
        rules = rules_of(found) if found is not None else ()
        if rules or found is None:
            self._ruled.add(node)
        if any(map(_is_wide, rules)):
            self._wide[pod] = node

    def forget_promises(self) -> None:
        """Nobody is to be bound any more."""
        self.promised.clear()
        self.promises.clear()
        self.forgotten += 1
        self._wide.clear()
        self._ruled.clear()

    def rules_in_force(self) -> dict[Rule, None]:
        """The anti-affinity of the pods that have nodes, or are promised some."""
        ruled = (uid for uids in self.mirror.ruled.values() for uid in uids)
        promised = (uid for node in self._ruled for uid in self.promised.get(node, ()))
        pods = (self.mirror.pods.get(uid) for uids in (ruled, promised) for uid in uids)
        return dict.fromkeys(rule for pod in pods if pod is not None for rule in rules_of(pod))

    def on(self, node: str, ignored: Collection[str] = NOBODY) -> list[Pod]:
        """The pods that are on a node or are to be, but for those that will be gone."""
        pods, gone = self.mirror.pods, self.leaving.get(node, {})
        uids = dict.fromkeys((*self.mirror.on_node.get(node, ()), *self.promised.get(node, ())))
        found = (pods.get(uid) for uid in uids if uid not in gone and uid not in ignored)
        return [pod for pod in found if pod is not None and not is_over(pod)]

    def conflict(
        self, pod: Pod, node: str, placed: Placed = (), going: Collection[str] = NOBODY, counted: bool = False
    ) -> Pod | None:
        """A pod beside which this one must not run at the node. `counted`: but for those that the core keeps apart.

        Pods in `placed` are to have their nodes too, and those in `going` will be gone.
        """
        own, kin = rules_of(pod), own_kind(pod)
        ignored = {pod.metadata.uid, *going}
        for where, other in self._near(node, own, placed):
            if other.metadata.uid in ignored:
                continue
            rules = [rule for rule in own if rule.is_about(other)]
            rules += [rule for rule in rules_of(other) if rule.is_about(pod)]
            if counted and self.is_kin(pod, other):
                rules = [rule for rule in rules if rule != kin]
            if any(self.domain(rule.key, node, where) for rule in rules):
                return other
        return self._far(pod, node, own, ignored)

    def is_kin(self, pod: Pod, other: Pod) -> bool:
        """Whether the core keeps these two apart."""
        group = apart_group(pod)
        return bool(group) and other.spec.scheduler_name == self.scheduler and apart_group(other) == group

    def _near(self, node: str, own: Sequence[Rule], placed: Placed) -> Iterator[tuple[str, Pod]]:
        """The pods at the node, and those that are to be bound anywhere and that a rule beyond nodes may be about."""
        pods = self.mirror.pods
        if own or node in self.mirror.ruled or node in self._ruled:
            yield from ((node, pod) for pod in self.on(node))
        if any(map(_is_wide, own)):
            for where, uids in self.promised.items():
                yield from ((where, pods[uid]) for uid in uids if uid in pods)
        else:
            yield from ((where, pods[uid]) for uid, where in self._wide.items() if uid in pods)
        yield from placed

    def _far(self, pod: Pod, node: str, own: Sequence[Rule], ignored: Collection[str]) -> Pod | None:
        """A pod that has a node and is in the way by a rule that reaches beyond nodes, its own or that of the pod."""
        self._refresh()
        found = [(rule, self.about(rule)) for rule in own if _is_wide(rule)]
        found += [(rule, domains) for rule, domains in self._carriers.items() if rule.is_about(pod)]
        for rule, domains in found:
            domain = self.domain(rule.key, node, node)
            for other in domains.get(domain, ()) if domain else ():
                uid, where = other.metadata.uid, other.spec.node_name
                if uid not in ignored and uid not in self.leaving.get(where, ()):
                    return other
        return None

    def about(self, rule: Rule) -> Domains:
        """The pods that have nodes and that the rule is about, by their domains."""
        self._refresh()
        found = self._about.get(rule)
        if found is None:
            found = self._about[rule] = {}
            for node, uids in self.mirror.on_node.items():
                domain = self.domain(rule.key, node, node)
                if domain:
                    here = [pod for uid in uids if rule.is_about(pod := self.mirror.pods[uid])]
                    found.setdefault(domain, []).extend(here)
        return found

    def _refresh(self) -> None:
        if self._version == self.mirror.version:
            return
        self._version, self._about, self._carriers = self.mirror.version, {}, {}
        for uid in self.mirror.wide:
            pod = self.mirror.pods[uid]
            for rule in filter(_is_wide, rules_of(pod)):
                domain = self.domain(rule.key, pod.spec.node_name, pod.spec.node_name)
                if domain:
                    self._carriers.setdefault(rule, {}).setdefault(domain, []).append(pod)

    def domain(self, key: str, one: str, other: str) -> str | None:
        """The domain in which both of these nodes are, by a label; None where they are in none together."""
        nodes = self.mirror.nodes
        first, second = (
            domain_of(nodes[name].metadata.labels, name, key) if name in nodes else None for name in (one, other)
        )
        return first if first is not None and first == second else None


def _is_wide(rule: Rule) -> bool:
    return rule.key != HOSTNAME
