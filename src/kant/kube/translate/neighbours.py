"""Affinity rules of a pod: pods that it must not run with, pods that it must run with, and how evenly pods must spread.

A pod obeys its own rules, and the anti-affinity of pods that are already placed. Source: kube-scheduler's plugins
InterPodAffinity, PodTopologySpread and NodePorts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.selectors import matches, selects

DISK = "disk "
"""Prefix of the names of disks, among the host resources that only one pod of a node may use."""

NO_NAMESPACE = ("",)
"""The namespaces of a term whose namespace selector matches no namespace. No pod is in a namespace without a name."""


class Rule(NamedTuple):
    """Selects pods in these namespaces (empty: in any) whose labels `selector` matches, in a domain of the label `key`.

    In anti-affinity, no selected pod may be in the domain; in affinity, at least one must be. `selector` is a list of
    requirements as text, equal for equal selectors. "" matches nothing.
    """

    namespaces: tuple[str, ...]
    selector: str
    key: str = HOSTNAME

    def is_about(self, pod: k.Pod) -> bool:
        """Whether the rule selects this pod."""
        meta = pod.metadata
        if not self.selector or (self.namespaces and meta.namespace not in self.namespaces):
            return False
        return all(matches(meta.labels or {}, one) for one in self.requirements)

    @property
    def requirements(self) -> tuple[k.Requirement, ...]:
        """The requirements in `selector`, decoded."""
        return _requirements(self.selector)


class Spread(NamedTuple):
    """A node's domain may have at most `skew` more pods selected by `like` than the domain with the fewest.

    Domains consist of the nodes that the pod selects (if `by_selector`) and whose taints it tolerates (if `by_taints`),
    and that have all labels in `keys`, the labels by which the pod is spread. If there are fewer than `least` domains,
    the fewest count as 0.
    """

    like: Rule
    skew: int
    least: int
    by_selector: bool
    by_taints: bool
    keys: tuple[str, ...] = ()


def wanted_beside(pod: k.Pod) -> tuple[Rule, ...]:
    """Return the required pod affinity. For each rule, a matching pod must be in the domain of the pod's node.

    As in kube-scheduler, a pod matches a term only if it matches all terms.
    """
    affinity = pod.spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    if near is None:
        return ()
    rules = tuple(_rule(term, pod) for term in near.required_during_scheduling_ignored_during_execution)
    return tuple(dict.fromkeys(_both(rules, rule.key) for rule in rules)) if len(rules) > 1 else rules


def _both(rules: Sequence[Rule], key: str) -> Rule:
    """Return a rule for the label `key` that selects the pods that all of these rules select."""
    spaces = [{*rule.namespaces} for rule in rules if rule.namespaces]
    common = set.intersection(*spaces) if spaces else set()
    if not all(rule.selector for rule in rules):
        return Rule((), "", key)
    terms = {json.dumps(term): term for rule in rules for term in json.loads(rule.selector)}
    selector = json.dumps(sorted(terms.values()), separators=(",", ":"))
    return Rule(tuple(sorted(common)) if common or not spaces else NO_NAMESPACE, selector, key)


def spreads_of(pod: k.Pod, must: bool = True) -> tuple[Spread, ...]:
    """Return the topology spread constraints of a pod: hard ones (DoNotSchedule), or soft ones (`must` False)."""
    labels, found = pod.metadata.labels or {}, []
    asked = [
        one for one in pod.spec.topology_spread_constraints if (one.when_unsatisfiable != "ScheduleAnyway") == must
    ]
    keys = tuple(sorted({one.topology_key for one in asked}))
    for one in asked:
        selector = one.label_selector
        own = tuple(k.Requirement(key, "In", (labels[key],)) for key in one.match_label_keys if key in labels)
        if selector is not None and own:
            selector = replace(selector, match_expressions=(*selector.match_expressions, *own))
        if selector is not None and not (selector.match_labels or selector.match_expressions):
            selector = None  # for kube-scheduler an empty selector selects no pods
        like = Rule((pod.metadata.namespace,), selector_text(selector), one.topology_key)
        by_selector, by_taints = one.node_affinity_policy != "Ignore", one.node_taints_policy == "Honor"
        found.append(Spread(like, one.max_skew, one.min_domains or 1, by_selector, by_taints, keys))
    return tuple(found)


def rules_of(pod: k.Pod) -> tuple[Rule, ...]:
    """Return the required anti-affinity of a pod. Terms whose namespace selector is left apply to all namespaces."""
    affinity = pod.spec.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    if anti is None:
        return ()
    return tuple(_rule(term, pod) for term in anti.required_during_scheduling_ignored_during_execution)


def pulls_of(pod: k.Pod) -> tuple[tuple[Rule, int], ...]:
    """Return the preferred pod affinity with its weights, which are negative for anti-affinity.

    Terms that select namespaces by labels are left out if Kant may not list namespaces.
    """
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    return tuple(
        (_rule(one.pod_affinity_term, pod), sign * one.weight)
        for part, sign in ((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1))
        for one in (part.preferred_during_scheduling_ignored_during_execution if part is not None else ())
        if one.weight and one.pod_affinity_term.label_selector and not _has_labels(one.pod_affinity_term)
    )


def ports_of(spec: k.PodSpec) -> tuple[str, ...]:
    """Return the host resources that no other pod may use: ports, such as TCP/8080, and disks that the pod writes.

    A port counts for all addresses of the host. Disks are treated as by kube-scheduler's VolumeRestrictions, except
    that pods that only read may run beside a pod that writes.
    """
    found = set[str]()
    for container in (*spec.containers, *spec.init_containers):
        for port in container.ports:
            if port.host_port:
                found.add(f"{port.protocol or 'TCP'}/{port.host_port}")
    return tuple(sorted(found | _disks_of(spec) if spec.volumes else found))


def _disks_of(spec: k.PodSpec) -> set[str]:
    found = set()
    for one in spec.volumes:
        if one.aws_elastic_block_store is not None:
            found.add(f"{DISK}{one.aws_elastic_block_store.volume}")
        for disk in (one.gce_persistent_disk, one.rbd, one.iscsi):
            if disk is not None and not disk.read_only:
                found.add(f"{DISK}{disk.pd_name or disk.iqn or f'{disk.pool}/{disk.image}'}")
    return found


def port_words(port: str) -> str:
    """Return a name for messages: that of a port or disk in the form of `ports_of`."""
    return port if port.startswith(DISK) else f"port {port}"


def selector_text(selector: k.LabelSelector | None) -> str:
    """Return the selector as text, the same for equivalent selectors; "" for none."""
    if selector is None:
        return ""
    terms = [[key, "In", [value]] for key, value in (selector.match_labels or {}).items()]
    terms += [[one.key, one.operator, sorted(one.values)] for one in selector.match_expressions]
    return json.dumps(sorted(terms), separators=(",", ":"))


def selects_namespaces(affinity: k.Affinity | None) -> bool:
    """Whether a term selects namespaces by their labels."""
    return affinity is not None and any(map(_has_labels, _terms(affinity)))


def in_namespaces(affinity: k.Affinity, namespaces: Mapping[str, Mapping[str, str] | None]) -> k.Affinity:
    """Return the affinity with the names of namespaces in place of selectors of namespaces.

    `namespaces` has the labels of each namespace. The names are added to the namespaces that a term lists.
    """
    near, apart = (
        part
        and replace(
            part,
            required_during_scheduling_ignored_during_execution=tuple(
                _named(term, namespaces) for term in part.required_during_scheduling_ignored_during_execution
            ),
            preferred_during_scheduling_ignored_during_execution=tuple(
                replace(one, pod_affinity_term=_named(one.pod_affinity_term, namespaces))
                for one in part.preferred_during_scheduling_ignored_during_execution
            ),
        )
        for part in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )
    return replace(affinity, pod_affinity=near, pod_anti_affinity=apart)


def _terms(affinity: k.Affinity) -> tuple[k.PodTerm, ...]:
    parts = [part for part in (affinity.pod_affinity, affinity.pod_anti_affinity) if part]
    liked = (one for part in parts for one in part.preferred_during_scheduling_ignored_during_execution)
    asked = (term for part in parts for term in part.required_during_scheduling_ignored_during_execution)
    return (*asked, *(one.pod_affinity_term for one in liked))


def _has_labels(term: k.PodTerm) -> bool:
    return term.namespace_selector not in (None, k.LabelSelector())


def _named(term: k.PodTerm, namespaces: Mapping[str, Mapping[str, str] | None]) -> k.PodTerm:
    selector = term.namespace_selector
    if selector is None or not _has_labels(term):
        return term
    found = {name for name, labels in namespaces.items() if selects(selector, labels or {})}
    return replace(term, namespaces=tuple(sorted(found | {*term.namespaces})) or NO_NAMESPACE, namespace_selector=None)


def domain_of(labels: Mapping[str, str] | None, node: str, key: str) -> str | None:
    """Return a node's domain by the label `key`: for the host label, the node itself. None if it lacks the label."""
    return node if key == HOSTNAME else (labels or {}).get(key)


def _rule(term: k.PodTerm, pod: k.Pod) -> Rule:
    spaces = term.namespaces or (pod.metadata.namespace,)
    spaces = () if term.namespace_selector is not None else tuple(sorted(set(spaces)))
    return Rule(spaces, selector_text(term.label_selector), term.topology_key)


@lru_cache(maxsize=1024)
def _requirements(text: str) -> tuple[k.Requirement, ...]:
    return tuple(k.Requirement(key, operator, tuple(values)) for key, operator, values in json.loads(text))
