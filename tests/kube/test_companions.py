"""Required affinity and spreading: a node passes exactly if it does by the rules of the API, counted from the start."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.test_filters import HOST, ROW, ROWS, ZONE, ZONES, mirror_with

from kant.kube.objects import views as k
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.translate.levels import Levels
from kant.kube.translate.pods import GangJob, Setting, job_of

APPS = st.sampled_from(("web", "db"))
KEYS = st.sampled_from((HOST, ZONE, ROW))
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
    ),
    max_size=2,
)


def pod(name: str, app: str, node: str = "", ending: bool = False, zone: str = "", **spec: Any) -> k.Pod:
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


def domain(key: str, node: str) -> str | None:
    return node if key == HOST else (ZONES if key == ZONE else ROWS).get(node)


@given(there, APPS, st.lists(st.tuples(st.sampled_from(("web", "db", "")), KEYS), min_size=1, max_size=2))
def test_a_pod_runs_beside_those_that_it_needs(
    others: list[tuple[str, str, bool]], app: str, terms: list[tuple[str, str]]
) -> None:
    """One that all of its terms are about: as in kube-scheduler's InterPodAffinity, for each term by its own key."""
    existing = [pod(f"old-{number}", own, node, ending) for number, (node, own, ending) in enumerate(others)]
    new = pod("new", app, affinity=near(*terms))
    filters = NodeFilters(mirror_with(*existing, new), "kant")
    meant = {own for own in ("web", "db") if all(wanted in ("", own) for wanted, _ in terms)}
    hosting = {(key, domain(key, node)) for node, own, _ in others if own in meant for _, key in terms}
    hosting = {(key, name) for key, name in hosting if name is not None}
    for node in ZONES:
        own = [(key, domain(key, node)) for _, key in terms]
        beside = all(one in hosting for one in own) or (not hosting and app in meant)
        assert (not filters.check([(node, new)])) == (beside and all(name is not None for _, name in own))


@given(there, APPS, spreads, st.sampled_from(("", "a", "b")))
def test_pods_are_spread_as_evenly_as_they_say(
    others: list[tuple[str, str, bool]], app: str, constraints: list[k.SpreadConstraint], zone: str
) -> None:
    existing = [pod(f"old-{number}", own, node, ending) for number, (node, own, ending) in enumerate(others)]
    new = pod("new", app, zone=zone, topology_spread_constraints=tuple(constraints))
    filters = NodeFilters(mirror_with(*existing, new), "kant")
    for node in ZONES:
        hard = [one for one in constraints if one.when_unsatisfiable == "DoNotSchedule"]
        keys = {one.topology_key for one in hard}
        known = {name for name in ZONES if all(domain(key, name) is not None for key in keys)}
        kept = node in known or not hard
        kept = kept and all(keeps(one, others, app, zone, node, known) for one in hard)
        assert (not filters.check([(node, new)])) == kept


def keeps(
    one: k.SpreadConstraint, others: list[tuple[str, str, bool]], app: str, zone: str, node: str, known: set[str]
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
    domains = {domain(one.topology_key, name) for name in nodes}
    found = Counter(
        domain(one.topology_key, at) for at, own, ending in others if at in nodes and like(own) and not ending
    )
    least = min((found[name] for name in domains), default=0) if len(domains) >= (one.min_domains or 1) else 0
    return found[domain(one.topology_key, node)] + like(app) - least <= one.max_skew


def test_what_is_promised_or_placed_beside_it_counts() -> None:
    constraint = k.SpreadConstraint(ZONE, "DoNotSchedule", 1, None, k.LabelSelector({"app": "web"}))
    one, two, three = (pod(name, "web", topology_spread_constraints=(constraint,)) for name in ("one", "two", "three"))
    filters = NodeFilters(mirror_with(one, two, three), "kant")
    assert not filters.check([("n0", one), ("n2", two)])
    assert "too many like it" in filters.check([("n0", one), ("n1", two)])
    filters.neighbours.promise("n0", "one")
    assert filters.check([("n1", two)]) and not filters.check([("n2", two)])
    filters.neighbours.promise("n2", "two")
    assert not filters.check([("n1", three)]) and not filters.check([("n2", three)])


def test_the_nodes_that_would_not_do_are_told_apart_and_named() -> None:
    lonely = pod("lonely", "web", affinity=near(("db", ZONE)))
    filters = NodeFilters(mirror_with(lonely), "kant")
    filters.begin([lonely])
    assert filters.failing.keys() == ZONES.keys()
    assert "podAffinity" in filters.why_nowhere(lonely, ZONES)
    filters.mirror.pod("added", pod("db", "db", "n2"))
    assert filters.improved({"n2": None})
    filters.begin([lonely])
    assert filters.failing.keys() == {"n0", "n1"}


@pytest.mark.parametrize(("key", "level"), [(HOST, "node"), ("rack", "leaf")])
def test_a_gang_near_itself_goes_into_one_domain(key: str, level: str) -> None:
    levels = Levels(leaf="rack", source="Topology fabric")
    gang = [pod(f"g-{number}", "web", affinity=near(("web", key))) for number in range(3)]
    found = job_of("ml/g", gang, Setting(levels))
    assert isinstance(found, GangJob) and (found.job.within, found.job.within_required) == (level, True)


def test_affinity_that_the_fabric_does_not_know_is_left_to_the_places_of_the_gang() -> None:
    gang = [pod(f"g-{number}", "web", affinity=near(("web", "row"))) for number in range(2)]
    found = job_of("ml/g", gang, Setting(Levels()))
    assert isinstance(found, GangJob) and found.job.within == ""
    workers = [pod(f"w-{number}", "web", affinity=near(("web", "rack"))) for number in range(2)]
    found = job_of("ml/g", [pod("head", "db"), *workers], Setting(Levels(leaf="rack")))
    assert isinstance(found, GangJob) and found.job.within == "", "the head may be anywhere"
