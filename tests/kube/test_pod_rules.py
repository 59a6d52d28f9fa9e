"""Rules among pods in the words of the model: what these let onto a node is exactly what the API's own rules do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.translate.levels import Levels
from kant.kube.translate.neighbours import rules_of
from kant.kube.translate.pod_rules import PODS, RuleBook
from kant.kube.translate.pods import GangJob, Setting, job_of
from kant.model.rules import HOST as SAME_NODE
from kant.model.rules import PodRules

HCA, HOST, ZONE, ROW = "rdma/hca", "kubernetes.io/hostname", "zone", "row"
ZONES = {"n0": "a", "n1": "a", "n2": "b"}
ROWS = {"n1": "1", "n2": "1"}
"""One node has no row."""
TAINTED = "n1"
Wish = tuple[str, int, int, tuple[tuple[str, str], ...]]
"""The label app of a pod, how many adapters it asks for, a port of its host, and whom it keeps from: (key, app)."""

APPS = st.sampled_from(("web", "db"))
KEYS = st.sampled_from((HOST, ZONE, ROW))
wishes = st.tuples(
    APPS, st.integers(0, 2), st.sampled_from((0, 0, 80)), st.lists(st.tuples(KEYS, APPS), max_size=2).map(tuple)
)
placed = st.lists(st.tuples(st.sampled_from(sorted(ZONES)), wishes), max_size=4)
there = st.lists(st.tuples(st.sampled_from(sorted(ZONES)), APPS, st.booleans()), max_size=6)
spreads = st.lists(
    st.builds(
        k.SpreadConstraint,
        topology_key=KEYS,
        when_unsatisfiable=st.sampled_from(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        max_skew=st.integers(1, 2),
        min_domains=st.sampled_from((None, 2, 3)),
        label_selector=st.sampled_from((None, k.LabelSelector(), k.LabelSelector({"app": "web"}))),
        match_label_keys=st.sampled_from(((), ("app",))),
        node_affinity_policy=st.sampled_from(("", "Honor", "Ignore")),
        node_taints_policy=st.sampled_from(("", "Honor", "Ignore")),
    ),
    max_size=2,
)


def pod(name: str, wish: Wish, node: str = "", scheduler: str = "kant") -> k.Pod:
    app, hca, port, keeps = wish
    requests: dict[str, str | int | float] = {HCA: hca, "cpu": "1"} if hca else {"cpu": "1"}
    ports = (k.Port(port),) if port else ()
    terms = tuple(k.PodTerm(k.LabelSelector({"app": other}), key) for key, other in keeps)
    return k.Pod(
        k.Meta(name, "ml", uid=name, labels={"app": app}),
        k.PodSpec(
            node_name=node,
            scheduler_name=scheduler,
            containers=(k.Container(k.Resources(requests), ports),),
            affinity=k.Affinity(pod_anti_affinity=k.PodAffinity(terms)) if terms else None,
        ),
    )


def simple(name: str, app: str, node: str = "", ending: bool = False, zone: str = "", **spec: Any) -> k.Pod:
    ended = "2026-01-01T00:00:00Z" if ending else None
    made = "2026-01-01T00:00:00Z"
    meta = k.Meta(name, "ml", uid=name, creation_timestamp=made, deletion_timestamp=ended, labels={"app": app})
    container = k.Container(k.Resources({"cpu": "1"}))
    selector = {"node_selector": {ZONE: zone}} if zone else {}
    return k.Pod(meta, k.PodSpec(node_name=node, scheduler_name="kant", containers=(container,), **selector, **spec))


def near(*terms: tuple[str, str]) -> k.Affinity:
    """By pairs of an app, "" for any, and a key."""
    return k.Affinity(
        pod_affinity=k.PodAffinity(
            tuple(k.PodTerm(k.LabelSelector({"app": app} if app else None), key) for app, key in terms)
        )
    )


def mirror_with(*pods: k.Pod, cpu: int = 8) -> Mirror:
    mirror = Mirror()
    for name, zone in ZONES.items():
        room: dict[str, str | int | float] = {HCA: 2, "cpu": cpu, "memory": "1Gi"}
        labels = {HOST: name, ZONE: zone} | ({ROW: ROWS[name]} if name in ROWS else {})
        mirror.nodes.change("added", k.Node(k.Meta(name, labels=labels), k.NodeSpec(), k.NodeStatus(room, room)))
    for one in pods:
        mirror.pod("added", one)
    return mirror


# --- what the words of the model mean ------------------------------------------------------------------------------


class World:
    """The counts of one state as `kant.model.rules` defines them, kept the slow way."""

    def __init__(self, nodes: Sequence[k.Node], waiting: Sequence[k.Pod], bound: Sequence[tuple[str, k.Pod]]) -> None:
        self.book, self.nodes = RuleBook(), nodes
        for one in waiting:
            self.book.rules(one)
        for _, one in bound:
            self.book.note(one)
        self.on = [(node, self.book.counted(one)) for node, one in bound]

    def domain(self, topology: str, node: str) -> str:
        if topology == SAME_NODE:
            return node
        known = self.book.topologies[topology]
        return next(known.domain(view) for view in self.nodes if view.metadata.name == node)

    def counts(self, name: str, topology: str) -> Counter[str]:
        found = Counter[str]()
        for node, rules in self.on:
            if name in rules.classes and (where := self.domain(topology, node)):
                found[where] += 1
        return found

    def allows(self, rules: PodRules, node: str) -> bool:
        for one in rules.anti_affinity:
            where = self.domain(one.topology, node)
            if where and self.counts(one.pod_class, one.topology)[where] > one.most:
                return False
        lonely = not any(self.counts(one.pod_class, one.topology).total() for one in rules.affinity)
        for near in rules.affinity:
            where = self.domain(near.topology, node)
            first = lonely and near.pod_class in rules.classes
            if not where or not (first or self.counts(near.pod_class, near.topology)[where]):
                return False
        for even in rules.spread:
            where, found = self.domain(even.topology, node), self.counts(even.pod_class, even.topology)
            domains = {self.domain(even.topology, view.metadata.name) for view in self.nodes} - {""}
            fewest = min(found[one] for one in domains) if len(domains) >= max(even.min_domains, 1) else 0
            if not where or found[where] + (even.pod_class in rules.classes) - fewest > even.max_skew:
                return False
        return all(
            amount + sum(dict(own.amounts).get(name, 0) for at, own in self.on if at == node)
            <= {HCA: 2, PODS: 99}[name]
            for name, amount in rules.amounts
        )

    def put(self, pod: k.Pod, node: str) -> bool:
        """Place a pod there, if that is allowed."""
        rules = self.book.rules(pod)
        if not self.allows(rules, node):
            return False
        self.on.append((node, rules))
        return True


def views_of(mirror: Mirror) -> list[k.Node]:
    return list(mirror.nodes.values())


# --- and what the API means ----------------------------------------------------------------------------------------


def is_allowed(there: list[tuple[str, Wish]], new: list[tuple[str, Wish]]) -> bool:
    """By the rules of the API, counted from the beginning; those who are there already may be in each other's way."""
    everybody = [*((node, wish, False) for node, wish in there), *((node, wish, True) for node, wish in new)]
    for node, wish in new:
        if wish[1] and sum(own[1] for where, own, _ in everybody if where == node) > 2:
            return False
    for (node, first, one), (other, second, two) in combinations(everybody, 2):
        if not (one or two):
            continue
        if node == other and first[2] and first[2] == second[2]:
            return False
        keys = [key for key, app in first[3] if app == second[0]] + [key for key, app in second[3] if app == first[0]]
        if any((own := domain(key, node)) is not None and own == domain(key, other) for key in keys):
            return False
    return True


def domain(key: str, node: str) -> str | None:
    return node if key == HOST else (ZONES if key == ZONE else ROWS).get(node)


@given(placed, placed)
def test_anti_affinity_ports_and_amounts_hold_in_both_directions_as_the_api_says(
    there: list[tuple[str, Wish]], new: list[tuple[str, Wish]]
) -> None:
    existing = [(node, pod(f"old-{number}", wish, node)) for number, (node, wish) in enumerate(there)]
    coming = [(node, pod(f"new-{number}", wish)) for number, (node, wish) in enumerate(new)]
    world = World(views_of(mirror_with()), [one for _, one in coming], existing)
    assert all(world.put(one, node) for node, one in coming) == is_allowed(there, new)


@given(there, APPS, st.lists(st.tuples(st.sampled_from(("web", "db", "")), KEYS), min_size=1, max_size=2))
def test_a_pod_runs_beside_those_that_it_needs(
    others: list[tuple[str, str, bool]], app: str, terms: list[tuple[str, str]]
) -> None:
    """One that all of its terms are about: as in kube-scheduler's InterPodAffinity, for each term by its own key."""
    existing = [(node, simple(f"old-{n}", own, node, ending)) for n, (node, own, ending) in enumerate(others)]
    new = simple("new", app, affinity=near(*terms))
    world = World(views_of(mirror_with()), [new], existing)
    meant = {own for own in ("web", "db") if all(wanted in ("", own) for wanted, _ in terms)}
    hosting = {(key, domain(key, node)) for node, own, _ in others if own in meant for _, key in terms}
    hosting = {(key, name) for key, name in hosting if name is not None}
    for node in ZONES:
        own = [(key, domain(key, node)) for _, key in terms]
        beside = all(one in hosting for one in own) or (not hosting and app in meant)
        expected = beside and all(name is not None for _, name in own)
        assert world.allows(world.book.rules(new), node) == expected


@given(there, APPS, spreads, st.sampled_from(("", "a", "b")), st.booleans())
def test_pods_are_spread_as_evenly_as_they_say(
    others: list[tuple[str, str, bool]], app: str, constraints: list[k.SpreadConstraint], zone: str, tainted: bool
) -> None:
    existing = [(node, simple(f"old-{n}", own, node, ending)) for n, (node, own, ending) in enumerate(others)]
    new = simple("new", app, zone=zone, topology_spread_constraints=tuple(constraints))
    mirror = mirror_with()
    if tainted:
        view = mirror.nodes[TAINTED]
        mirror.nodes.change(
            "modified", k.Node(view.metadata, k.NodeSpec(taints=(k.Taint("kept", "", "NoSchedule"),)), view.status)
        )
    world = World(views_of(mirror), [new], existing)
    for node in ZONES:
        if (zone and ZONES[node] != zone) or (tainted and node == TAINTED):
            continue  # its node set leaves it out
        hard = [one for one in constraints if one.when_unsatisfiable == "DoNotSchedule"]
        keys = {one.topology_key for one in hard}
        known = {name for name in ZONES if all(domain(key, name) is not None for key in keys)}
        kept = node in known or not hard
        kept = kept and all(keeps(one, others, app, zone, node, known, tainted) for one in hard)
        assert world.allows(world.book.rules(new), node) == kept


def keeps(
    one: k.SpreadConstraint,
    others: list[tuple[str, str, bool]],
    app: str,
    zone: str,
    node: str,
    known: set[str],
    tainted: bool,
) -> bool:
    """As the API documents it: the matching pods of the domain and the pod, less those of the emptiest domain.

    Only of nodes that are `known` by the labels of all constraints, as in kube-scheduler's PodTopologySpread.
    """

    def like(own: str) -> bool:
        selector = one.label_selector
        if selector is None or not (selector.match_labels or one.match_label_keys):
            return False  # kube-scheduler counts nobody for an empty selector
        return (not selector.match_labels or own == "web") and (not one.match_label_keys or own == app)

    nodes = [name for name in sorted(known) if one.node_affinity_policy == "Ignore" or not zone or ZONES[name] == zone]
    nodes = [name for name in nodes if not (tainted and one.node_taints_policy == "Honor" and name == TAINTED)]
    domains = {domain(one.topology_key, name) for name in nodes}
    found = Counter(
        domain(one.topology_key, at) for at, own, ending in others if at in nodes and like(own) and not ending
    )
    least = min((found[name] for name in domains), default=0) if len(domains) >= (one.min_domains or 1) else 0
    return found[domain(one.topology_key, node)] + like(app) - least <= one.max_skew


def test_a_rule_is_that_of_the_api() -> None:
    everywhere = k.PodTerm(k.LabelSelector({"app": "web"}), HOST, (), k.LabelSelector())
    there = k.PodTerm(None, ZONE, ("x", "y"))
    one = k.Pod(k.Meta("p", "ml"), k.PodSpec(affinity=k.Affinity(None, None, k.PodAffinity((everywhere, there)))))
    first, second = rules_of(one)
    web = k.Pod(k.Meta("w", "z", labels={"app": "web"}))
    assert first.is_about(web) and first.namespaces == () and not second.is_about(web)
    assert second.namespaces == ("x", "y") and not second.is_about(k.Pod(k.Meta("w", "x")))  # no selector, no pod


def test_a_class_is_known_to_be_new_once_and_counts_who_is_there() -> None:
    book, old = RuleBook(), pod("old", ("web", 0, 0, ()), "n0")
    assert book.counted(old).classes == () and not book.take_new()
    keeper = pod("new", ("db", 0, 0, ((ZONE, "web"),)))
    asked = book.rules(keeper)
    (rule,) = set(book.take_new())
    assert rule.is_about(old) and not rule.is_about(keeper) and not book.take_new()
    assert [one.pod_class for one in asked.anti_affinity] == list(book.counted(old).classes)
    assert [one.pod_class for one in book.rules(old).anti_affinity] == list(asked.classes), "both directions"


@pytest.mark.parametrize(("key", "level"), [(HOST, "node"), ("rack", "leaf")])
def test_a_gang_near_itself_goes_into_one_domain(key: str, level: str) -> None:
    levels = Levels(leaf="rack", source="Topology fabric")
    gang = [simple(f"g-{number}", "web", affinity=near(("web", key))) for number in range(3)]
    found = job_of("ml/g", gang, Setting(levels))
    assert isinstance(found, GangJob) and (found.job.within, found.job.within_required) == (level, True)


def test_affinity_that_the_fabric_does_not_know_is_a_rule_of_its_pods() -> None:
    gang = [simple(f"g-{number}", "web", affinity=near(("web", "row"))) for number in range(2)]
    found = job_of("ml/g", gang, Setting(Levels()))
    assert isinstance(found, GangJob) and found.job.within == ""
    workers = [simple(f"w-{number}", "web", affinity=near(("web", "rack"))) for number in range(2)]
    found = job_of("ml/g", [simple("head", "db"), *workers], Setting(Levels(leaf="rack")))
    assert isinstance(found, GangJob) and found.job.within == "", "the head may be anywhere"
