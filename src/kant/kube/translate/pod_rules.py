"""The rules among pods in the words of the model: which classes a pod counts in, what it demands of them, its amounts.

A class is the pods that a selector is about in some namespaces, those that carry one rule of anti-affinity, or those
that have one port of their host. So anti-affinity holds in both directions: who carries a rule keeps away from the pods
that it is about, and these keep away from who carries it. Source: kube-scheduler's plugins InterPodAffinity,
PodTopologySpread, NodePorts and NodeResourcesFit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2s
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.neighbours import (
    Rule,
    Spread,
    domain_of,
    port_words,
    ports_of,
    pulls_of,
    rules_of,
    spreads_of,
    wanted_beside,
)
from kant.kube.translate.node_facts import admits
from kant.kube.translate.pods import whole_selection
from kant.kube.translate.resources import GPU_RESOURCES, amount_of, others_of
from kant.kube.translate.selectors import Selection
from kant.model.errors import InputError
from kant.model.preference import LikedPods, LikedSpread
from kant.model.rules import HOST, PodAffinity, PodAntiAffinity, PodRules, TopologySpread

PODS = "pods"
"""The amount of which every pod takes one."""

NO_LIMIT = 1 << 30
LEAST = 512
"""Classes up to which a book is never overgrown."""

REQUIRED_WEIGHT = 1
"""What required affinity of a pod that is there counts for pods that come: hardPodAffinityWeight of kube-scheduler."""

CLAIMED, PULLING = "devices ", "pulling "
"""Before the names of classes with equal claims to devices, and of those that prefer others."""

LABEL, CARRIERS, LIVING, ELIGIBLE = "label ", "carriers ", "living ", "eligible "
"""Before the names of topologies that are labels, of classes that carry a rule, of those without pods that are ending,
and of topologies that have only the nodes over which a pod is spread."""


class PodClass(NamedTuple):
    """The pods that a rule is about, whatever its label; `living`: but for those that are ending."""

    rule: Rule
    living: bool = False

    @property
    def name(self) -> str:
        """Equal for equal classes."""
        return f"{LIVING if self.living else ''}{','.join(self.rule.namespaces)}/{self.rule.selector}"

    def has(self, pod: k.Pod) -> bool:
        """Whether a pod is in it."""
        return not (self.living and pod.metadata.deletion_timestamp) and self.rule.is_about(pod)


class Eligible(NamedTuple):
    """The nodes over which pods with this selection are spread, and their domains."""

    spread: Spread
    selection: Selection

    @property
    def name(self) -> str:
        """The name of the topology; that of the label alone where all nodes are eligible that have it."""
        spread = self.spread
        selects = spread.by_selector and (self.selection.always or self.selection.terms is not None)
        if not selects and not spread.by_taints and spread.keys in ((), (spread.like.key,)):
            return topology_of(spread.like.key)
        policies = spread.by_selector, spread.by_taints
        return f"{ELIGIBLE}{spread.like.key} {_digest((spread.keys, *policies, self.selection))}"

    def domain(self, view: k.Node) -> str:
        """The domain of a node; "" where it is not eligible."""
        labels, name, spread = view.metadata.labels, view.metadata.name, self.spread
        if any(domain_of(labels, name, key) is None for key in spread.keys):
            return ""
        if spread.by_selector and not self.selection.selects(labels or {}, name):
            return ""
        free = Selection((), None, self.selection.tolerations)
        if spread.by_taints and not admits(free, view):
            return ""
        return domain_of(labels, name, spread.like.key) or ""


class RuleBook:
    """The classes and topologies that rules of pods speak of.

    A class comes to be when a pod is noted whose rules speak of it, and has then to be counted for pods that are there.
    """

    def __init__(self) -> None:
        self.topologies: dict[str, Eligible] = {}  # those that no event has named have no domains
        self._classes = _Classes()
        self._kept_away = _Classes()  # by the name of the class that carries a rule: the pods that it is about
        self._pulled = _Classes()  # by the name of the class that prefers a rule: the pods that it is about
        self._weights: dict[str, int] = {}  # of these classes
        self._new: dict[Rule, None] = {}
        self._most = LEAST

    @property
    def is_overgrown(self) -> bool:
        """Whether it pays to begin another one, of the pods that there are: nothing is forgotten here."""
        return self._size > self._most

    def begun(self) -> None:
        """All pods there are have been noted."""
        self._new, self._most = {}, max(LEAST, 4 * self._size)

    @property
    def _size(self) -> int:
        return len(self._classes.names) + len(self._kept_away.names) + len(self._pulled.names)

    def take_new(self) -> list[Rule]:
        """The rules that were not known when somebody asked last: pods that they are about count otherwise now."""
        found, self._new = list(self._new), {}
        return found

    def rules(self, pod: k.Pod) -> PodRules:
        """All that a pod counts as and demands; what its rules speak of is known from now on. Raises InputError."""
        self.note(pod)
        near = [PodAffinity(self._class(rule), self._label(rule.key)) for rule in wanted_beside(pod)]
        even = [self._spread(one, whole_selection(pod)) for one in spreads_of(pod)]
        self.evenly(pod)  # it may count in what it would have spread
        return PodRules(
            self.classes(pod),
            tuple(dict.fromkeys(self._anti_affinity(pod))),
            tuple(dict.fromkeys(near)),
            tuple(dict.fromkeys(even)),
            amounts_of(pod),
        )

    def counted(self, pod: k.Pod) -> PodRules:
        """What a pod counts as that stands where it is, whatever it demands."""
        self.note(pod)
        return PodRules(self.classes(pod), amounts=amounts_of(pod))

    def note(self, pod: k.Pod) -> None:
        """A pod is there: it carries its rules."""
        for rule in rules_of(pod) if pod.spec.affinity is not None else ():
            name = carriers_of(rule)
            if rule.selector and name not in self._kept_away.names:
                self._new[rule] = None
                self._kept_away.add(name, PodClass(rule))
                self._class(rule)
                self._label(rule.key)
        for rule, weight in _pulls(pod) if pod.spec.affinity is not None else ():
            name = pulling(rule, weight)
            if name not in self._pulled.names:
                self._new[rule] = None
                self._pulled.add(name, PodClass(rule))
                self._weights[name] = weight
                self._class(rule)
                self._label(rule.key)

    def pulls(self, pod: k.Pod) -> tuple[LikedPods, ...]:
        """The pods that a pod likes or avoids beside it, and those that like or avoid it."""
        self.note(pod)
        own = pulls_of(pod) if pod.spec.affinity is not None else ()
        found = [LikedPods(self._class(rule), weight, topology_of(rule.key)) for rule, weight in own]
        found += [LikedPods(name, self._weights[name], topology_of(one.rule.key)) for name, one in self._pulled.of(pod)]
        return tuple(sorted(found, key=lambda one: (one.pod_class, one.topology, one.weight)))

    def evenly(self, pod: k.Pod) -> tuple[LikedSpread, ...]:
        """What a pod would have spread evenly. Raises InputError."""
        asked = spreads_of(pod, must=False) if pod.spec.topology_spread_constraints else ()
        even = [self._spread(one, whole_selection(pod)) for one in asked]
        return tuple(LikedSpread(one.pod_class, one.topology, one.max_skew) for one in even)

    def classes(self, pod: k.Pod) -> tuple[str, ...]:
        """The classes that a pod counts in, in order."""
        found = {name for name, _ in self._classes.of(pod)} | {*ports_of(pod.spec)}
        if pod.spec.affinity is not None:
            found.update(carriers_of(rule) for rule in rules_of(pod) if rule.selector)
            found.update(pulling(rule, weight) for rule, weight in _pulls(pod))
        return tuple(sorted(found))

    def _anti_affinity(self, pod: k.Pod) -> Iterator[PodAntiAffinity]:
        for port in ports_of(pod.spec):
            yield PodAntiAffinity(port)
        for rule in rules_of(pod) if pod.spec.affinity is not None else ():
            if rule.selector:
                yield PodAntiAffinity(self._class(rule), topology_of(rule.key))
        for name, one in self._kept_away.of(pod):
            yield PodAntiAffinity(name, topology_of(one.rule.key))

    def _spread(self, one: Spread, selection: Selection) -> TopologySpread:
        topology = self._topology(Eligible(one, selection))
        return TopologySpread(self._class(one.like, living=True), topology, one.skew, one.least)

    def _label(self, key: str) -> str:
        return self._topology(Eligible(Spread(Rule((), "", key), 1, 1, False, False), Selection((), None, ())))

    def _topology(self, eligible: Eligible) -> str:
        name = eligible.name
        if name != HOST:
            self.topologies.setdefault(name, eligible)
        return name

    def _class(self, rule: Rule, living: bool = False) -> str:
        found = PodClass(rule, living)
        name = found.name
        if rule.selector and name not in self._classes.names:
            self._new[rule] = None
            self._classes.add(name, found)
        return name


class _Classes:
    """Classes by name, found by a label that all of their pods have, where they name one."""

    def __init__(self) -> None:
        self.names: dict[str, PodClass] = {}
        self._by_label: dict[tuple[str, str], dict[str, PodClass]] = {}
        self._others: dict[str, PodClass] = {}

    def add(self, name: str, one: PodClass) -> None:
        self.names[name] = one
        label = next(((own.key, own.values[0]) for own in one.rule.requirements if _names_one(own)), None)
        (self._others if label is None else self._by_label.setdefault(label, {}))[name] = one

    def of(self, pod: k.Pod) -> Iterator[tuple[str, PodClass]]:
        """Those that a pod is in."""
        labels = (pod.metadata.labels or {}).items() if self._by_label else ()
        for found in (self._others, *(self._by_label[label] for label in labels if label in self._by_label)):
            yield from (own for own in found.items() if own[1].has(pod))


def amounts_of(pod: k.Pod) -> tuple[tuple[str, int], ...]:
    """The exact amounts that a pod takes of its node, itself among them."""
    return tuple(sorted({**others_of(pod.spec), PODS: 1}.items()))


def amounts_at(view: k.Node) -> tuple[tuple[str, int], ...]:
    """The exact amounts that a node has."""
    found = {PODS: NO_LIMIT}
    for name, amount in (view.status.allocatable or {}).items():
        if name not in (*GPU_RESOURCES, "cpu", "memory"):
            with suppress(InputError):
                found[name] = amount_of(name, amount, name, up=False)
    return tuple(sorted(found.items()))


def apart_from(rules: PodRules, apart: PodAntiAffinity | None) -> PodRules:
    """The rules of a pod that counts in this class as well, and is kept from others of it; None for none."""
    if apart is None:
        return rules
    classes = tuple(sorted((*rules.classes, apart.pod_class)))
    return replace(rules, classes=classes, anti_affinity=(*rules.anti_affinity, apart))


def topology_of(key: str) -> str:
    """The topology of a label; the nodes themselves for that of hosts."""
    return HOST if key == HOSTNAME else f"{LABEL}{key}"


def named_class(name: str) -> str:
    """What people call what only so many pods of a node may have, such as `port TCP/80`; "" for any other class."""
    if name.startswith(CLAIMED):
        return "what its claims ask for"
    if name.startswith((LIVING, CARRIERS)) or "[" in name:
        return ""
    return port_words(name)


def named_topology(name: str) -> str:
    """The label of a topology."""
    if name == HOST:
        return HOSTNAME
    return name.removeprefix(LABEL) if name.startswith(LABEL) else name.removeprefix(ELIGIBLE).partition(" ")[0]


def carriers_of(rule: Rule) -> str:
    """The class of the pods that carry a rule of anti-affinity."""
    return f"{CARRIERS}{rule.key} {PodClass(rule).name}"


def pulling(rule: Rule, weight: int) -> str:
    """The class of the pods that prefer others so much by a rule."""
    return f"{PULLING}{weight} {rule.key} {PodClass(rule).name}"


def _pulls(pod: k.Pod) -> list[tuple[Rule, int]]:
    """What a pod that is there prefers of those that come; whom it requires beside it, as kube-scheduler has it."""
    asked = [(rule, weight) for rule, weight in pulls_of(pod) if rule.selector]
    return list(dict.fromkeys([*asked, *((rule, REQUIRED_WEIGHT) for rule in wanted_beside(pod) if rule.selector)]))


def _names_one(one: k.Requirement) -> bool:
    return one.operator == "In" and len(one.values) == 1


def _digest(parts: object) -> str:
    return blake2s(repr(parts).encode(), digest_size=6).hexdigest()
