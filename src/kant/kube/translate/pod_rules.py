"""Affinity rules as objects of the model: the classes in which a pod counts, its rules about other pods, its amounts.

A class has the pods that a selector matches in some namespaces, or the pods that have one rule of anti-affinity, or the
pods that use one port of their host. So anti-affinity holds in both directions: a pod with a rule avoids the pods that
the rule selects, and these avoid it. Source: kube-scheduler's plugins InterPodAffinity, PodTopologySpread, NodePorts
and NodeResourcesFit.
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
"""The resource of which every pod uses one: it models a node's limit of pods."""

NO_LIMIT = 1 << 30
LEAST = 512
"""Up to this number of classes, a rule book is not rebuilt."""

REQUIRED_WEIGHT = 1
"""Weight with which a placed pod's required affinity attracts new pods (kube-scheduler's hardPodAffinityWeight)."""

CLAIMED, PULLING = "devices ", "pulling "
"""Prefixes of the names of classes of pods with equal device claims, and of classes of pods that prefer others."""

LABEL, CARRIERS, LIVING, ELIGIBLE = "label ", "carriers ", "living ", "eligible "
"""Prefixes of names, in this order: of topologies that are labels; of classes of the pods that carry a rule; of classes
without terminating pods; of topologies restricted to the nodes over which a pod is spread."""


class PodClass(NamedTuple):
    """The pods that a rule selects, in any domain. `living`: terminating pods are left out."""

    rule: Rule
    living: bool = False

    @property
    def name(self) -> str:
        """The name of the class, equal for equal classes."""
        return f"{LIVING if self.living else ''}{','.join(self.rule.namespaces)}/{self.rule.selector}"

    def has(self, pod: k.Pod) -> bool:
        """Whether a pod is in the class."""
        return not (self.living and pod.metadata.deletion_timestamp) and self.rule.is_about(pod)


class Eligible(NamedTuple):
    """The nodes over which pods with this selection are spread, and their domains."""

    spread: Spread
    selection: Selection

    @property
    def name(self) -> str:
        """The name of the topology: that of the label's topology if all nodes with the label are eligible."""
        spread = self.spread
        selects = spread.by_selector and (self.selection.always or self.selection.terms is not None)
        if not selects and not spread.by_taints and spread.keys in ((), (spread.like.key,)):
            return topology_of(spread.like.key)
        policies = spread.by_selector, spread.by_taints
        return f"{ELIGIBLE}{spread.like.key} {_digest((spread.keys, *policies, self.selection))}"

    def domain(self, view: k.Node) -> str:
        """Return the domain of a node; "" if it is not eligible."""
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
    """The classes and topologies that affinity rules name.

    A class is created with the first pod whose rules name it; existing pods must then be counted in it (`take_new`).
    """

    def __init__(self) -> None:
        self.topologies: dict[str, Eligible] = {}  # by name
        self._classes = _Classes()
        self._kept_away = _Classes()  # by the class that has a rule: the class of pods that it selects
        self._pulled = _Classes()  # by the class that prefers pods: the class that its rule selects
        self._weights: dict[str, int] = {}  # by the name of the class that prefers pods
        self._new: dict[Rule, None] = {}
        self._most = LEAST

    @property
    def is_overgrown(self) -> bool:
        """Whether a new book is due: a book forgets nothing, and this one has more than four times what pods needed."""
        return self._size > self._most

    def begun(self) -> None:
        """End the first reading of all existing pods: what their rules name does not count as new."""
        self._new, self._most = {}, max(LEAST, 4 * self._size)

    @property
    def _size(self) -> int:
        return len(self._classes.names) + len(self._kept_away.names) + len(self._pulled.names)

    def take_new(self) -> list[Rule]:
        """Return the rules that are new since the last call. The pods that they select must be counted again."""
        found, self._new = list(self._new), {}
        return found

    def rules(self, pod: k.Pod) -> PodRules:
        """Return a pod's classes and all of its rules, and record what the rules name. Raises InputError."""
        self.note(pod)
        near = [PodAffinity(self._class(rule), self._label(rule.key)) for rule in wanted_beside(pod)]
        even = [self._spread(one, whole_selection(pod)) for one in spreads_of(pod)]
        self.evenly(pod)  # the pod may count in the classes of its soft spread constraints
        return PodRules(
            self.classes(pod),
            tuple(dict.fromkeys(self._anti_affinity(pod))),
            tuple(dict.fromkeys(near)),
            tuple(dict.fromkeys(even)),
            amounts_of(pod),
        )

    def counted(self, pod: k.Pod) -> PodRules:
        """Return the classes in which a placed pod counts, without its rules about other pods."""
        self.note(pod)
        return PodRules(self.classes(pod), amounts=amounts_of(pod))

    def note(self, pod: k.Pod) -> None:
        """Record what the affinity of a pod names."""
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
        """Return the classes of pods that a pod prefers or avoids, and of placed pods that prefer or avoid this pod."""
        self.note(pod)
        own = pulls_of(pod) if pod.spec.affinity is not None else ()
        found = [LikedPods(self._class(rule), weight, topology_of(rule.key)) for rule, weight in own]
        found += [LikedPods(name, self._weights[name], topology_of(one.rule.key)) for name, one in self._pulled.of(pod)]
        return tuple(sorted(found, key=lambda one: (one.pod_class, one.topology, one.weight)))

    def evenly(self, pod: k.Pod) -> tuple[LikedSpread, ...]:
        """Return the soft spread constraints of a pod. Raises InputError."""
        asked = spreads_of(pod, must=False) if pod.spec.topology_spread_constraints else ()
        even = [self._spread(one, whole_selection(pod)) for one in asked]
        return tuple(LikedSpread(one.pod_class, one.topology, one.max_skew) for one in even)

    def classes(self, pod: k.Pod) -> tuple[str, ...]:
        """Return the names of the classes in which a pod counts, sorted."""
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
    """Classes by name. They are indexed by a label that all of their pods have, if there is such a label."""

    def __init__(self) -> None:
        self.names: dict[str, PodClass] = {}
        self._by_label: dict[tuple[str, str], dict[str, PodClass]] = {}
        self._others: dict[str, PodClass] = {}

    def add(self, name: str, one: PodClass) -> None:
        self.names[name] = one
        label = next(((own.key, own.values[0]) for own in one.rule.requirements if _names_one(own)), None)
        (self._others if label is None else self._by_label.setdefault(label, {}))[name] = one

    def of(self, pod: k.Pod) -> Iterator[tuple[str, PodClass]]:
        """Yield the name of each class that has the pod, and the class."""
        labels = (pod.metadata.labels or {}).items() if self._by_label else ()
        for found in (self._others, *filter(None, map(self._by_label.get, labels))):
            for name, one in found.items():
                if one.has(pod):
                    yield name, one


def amounts_of(pod: k.Pod) -> tuple[tuple[str, int], ...]:
    """Return, by resource, how much a pod uses of its node besides GPUs, CPU and memory. Of `PODS` it uses one."""
    return tuple(sorted({**others_of(pod.spec), PODS: 1}.items()))


def amounts_at(view: k.Node) -> tuple[tuple[str, int], ...]:
    """Return, by resource, how much a node has besides GPUs, CPU and memory."""
    found = {PODS: NO_LIMIT}
    for name, amount in (view.status.allocatable or {}).items():
        if name not in (*GPU_RESOURCES, "cpu", "memory"):
            with suppress(InputError):
                found[name] = amount_of(name, amount, name, up=False)
    return tuple(sorted(found.items()))


def apart_from(rules: PodRules, apart: PodAntiAffinity | None) -> PodRules:
    """Return the rules of a pod that also counts in the class of `apart` and avoids it. None: as they are."""
    if apart is None:
        return rules
    classes = tuple(sorted((*rules.classes, apart.pod_class)))
    return replace(rules, classes=classes, anti_affinity=(*rules.anti_affinity, apart))


def topology_of(key: str) -> str:
    """Return the name of the topology of a label. For the host label it is HOST: each node is a domain."""
    return HOST if key == HOSTNAME else f"{LABEL}{key}"


def named_class(name: str) -> str:
    """Return the user's name for a class that has a limit per node, such as `port TCP/80`; "" for any other class."""
    if name.startswith(CLAIMED):
        return "what its claims ask for"
    if name.startswith((LIVING, CARRIERS)) or "[" in name:
        return ""
    return port_words(name)


def named_topology(name: str) -> str:
    """Return the label that a topology is about."""
    if name == HOST:
        return HOSTNAME
    return name.removeprefix(LABEL) if name.startswith(LABEL) else name.removeprefix(ELIGIBLE).partition(" ")[0]


def carriers_of(rule: Rule) -> str:
    """Return the name of the class of the pods that have this anti-affinity rule."""
    return f"{CARRIERS}{rule.key} {PodClass(rule).name}"


def pulling(rule: Rule, weight: int) -> str:
    """Return the name of the class of the pods that prefer other pods by this rule and weight."""
    return f"{PULLING}{weight} {rule.key} {PodClass(rule).name}"


def _pulls(pod: k.Pod) -> list[tuple[Rule, int]]:
    """Return a placed pod's preferences about new pods. As in kube-scheduler, its required affinity is among them."""
    asked = [(rule, weight) for rule, weight in pulls_of(pod) if rule.selector]
    return list(dict.fromkeys([*asked, *((rule, REQUIRED_WEIGHT) for rule in wanted_beside(pod) if rule.selector)]))


def _names_one(one: k.Requirement) -> bool:
    return one.operator == "In" and len(one.values) == 1


def _digest(parts: object) -> str:
    return blake2s(repr(parts).encode(), digest_size=6).hexdigest()
