"""Rules among pods and exact amounts: at most so many of a class in a domain, at least one, spread evenly."""

from __future__ import annotations

from collections import Counter

import pytest

from kant.model.event import JobRuled, NodesJoined, NodesLeft, PodsCounted, TopologyChanged
from kant.model.node import ClusterSpec, Node
from kant.model.placement import GROUP, NODE, PODS
from kant.model.rules import PodAffinity, PodAntiAffinity, PodRules, TopologySpread
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_group, make_job

PROFILES = ("kant", "fifo", "easy", "conservative")
APART = PodRules(("web",), (PodAntiAffinity("web"),))
ZONES = {"n0": "a", "n1": "a", "n2": "b", "n3": "b", "n4": "c"}


def harness_of(profile: str = "kant", nodes: int = 5, gpus: int = 4) -> Harness:
    harness = Harness(make_cluster(*[gpus] * nodes), builtin_profile(profile))
    harness.happen(TopologyChanged(0, "zone", {name: zone for name, zone in ZONES.items() if int(name[1:]) < nodes}))
    return harness


def nodes_of(harness: Harness, job: str) -> list[str]:
    state = harness.state
    held = state.running.get(state.rows[job])
    if held is None:
        return []
    return sorted(state.nodes[node].name for node, pods in held[:, [NODE, PODS]].tolist() for _ in range(pods))


def zones_of(harness: Harness, *jobs: str) -> Counter[str]:
    return Counter(ZONES[node] for job in jobs for node in nodes_of(harness, job))


@pytest.mark.parametrize("profile", PROFILES)
def test_pods_that_keep_apart_stand_on_nodes_of_their_own(profile: str) -> None:
    harness = harness_of(profile)
    for number in range(6):
        harness.submit(make_job(f"j{number}", rules=(APART,)))
    harness.cycle()
    assert sorted(node for number in range(6) for node in nodes_of(harness, f"j{number}")) == sorted(ZONES)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_pods_of_a_gang_keep_apart(profile: str) -> None:
    harness = harness_of(profile)
    harness.submit(make_job("gang", 1, 5, rules=(APART,)))
    harness.submit(make_job("wide", 1, 6, rules=(PodRules(("db",), (PodAntiAffinity("db"),)),)))
    harness.cycle()
    assert nodes_of(harness, "gang") == sorted(ZONES)
    assert nodes_of(harness, "wide") == []


@pytest.mark.parametrize("profile", PROFILES)
def test_a_zone_takes_one_pod_of_a_class(profile: str) -> None:
    harness = harness_of(profile)
    rules = PodRules(("web",), (PodAntiAffinity("web", "zone"),))
    for number in range(4):
        harness.submit(make_job(f"j{number}", rules=(rules,)))
    harness.cycle()
    assert zones_of(harness, "j0", "j1", "j2", "j3") == {"a": 1, "b": 1, "c": 1}
    harness.finish("j1")
    harness.cycle()
    assert zones_of(harness, "j0", "j2", "j3") == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("profile", PROFILES)
def test_exact_amounts_are_counted(profile: str) -> None:
    nodes = tuple(Node(f"n{i}", 8, amounts=(("fpga", 3), ("pods", 4))) for i in range(2))
    harness = Harness(ClusterSpec("test", nodes), builtin_profile(profile))
    harness.submit(make_job("pair", 0, 2, cpu=1, rules=(PodRules(amounts=(("fpga", 2), ("pods", 1))),)))
    for number in range(7):
        harness.submit(make_job(f"j{number}", rules=(PodRules(amounts=(("pods", 1),)),)))
    harness.cycle()
    assert nodes_of(harness, "pair") == ["n0", "n1"]
    assert Counter(node for number in range(7) for node in nodes_of(harness, f"j{number}")) == {"n0": 3, "n1": 3}
    harness.submit(make_job("none", rules=(PodRules(amounts=(("ssd", 1),)),)))
    assert harness.cycle() is not None
    assert nodes_of(harness, "none") == []


@pytest.mark.parametrize("profile", PROFILES)
def test_a_spread_fills_the_emptiest_zone_first(profile: str) -> None:
    harness = harness_of(profile)
    rules = PodRules(("web",), spread=(TopologySpread("web", "zone", 1),))
    for number in range(7):
        harness.submit(make_job(f"j{number}", rules=(rules,)))
    harness.cycle()
    found = zones_of(harness, *(f"j{number}" for number in range(7)))
    assert sorted(found.values()) == [2, 2, 3]
    harness.submit(make_job("gang", 1, 5, rules=(rules,)))
    harness.cycle()
    assert sorted(zones_of(harness, "gang", *(f"j{number}" for number in range(7))).values()) == [4, 4, 4]


@pytest.mark.parametrize("profile", PROFILES)
def test_affinity_follows_the_first_of_a_class(profile: str) -> None:
    harness = harness_of(profile)
    rules = PodRules(("cache",), affinity=(PodAffinity("cache", "zone"),))
    harness.submit(make_job("gang", 4, 2, rules=(rules,)))
    harness.submit(make_job("beside", 1, 1, rules=(PodRules(affinity=(PodAffinity("cache", "zone"),)),)))
    harness.cycle()
    zones = zones_of(harness, "gang")
    assert len(zones) == 1 and zones.total() == 2
    assert nodes_of(harness, "beside") == [], "its zone is full"
    harness.submit(make_job("nowhere", 1, 1, rules=(PodRules(affinity=(PodAffinity("db", "zone"),)),)))
    harness.cycle()
    assert nodes_of(harness, "nowhere") == []
    harness.submit(make_job("db", 1, 1, rules=(PodRules(("db",)),)))
    harness.cycle()
    harness.cycle()
    assert zones_of(harness, "nowhere") == zones_of(harness, "db")


def test_groups_of_a_gang_that_limit_each_other_are_placed_exactly() -> None:
    """Whoever places the first group in any zone finds no place for the second."""
    harness = harness_of()
    near = PodRules((), affinity=(PodAffinity("lead", "zone"),))
    harness.submit(make_job("full", 4))
    harness.submit(
        make_job("gang", groups=(make_group(1), make_group(4)), rules=(PodRules(("lead",)), near)),
    )
    harness.cycle()
    held = harness.state.running[harness.state.rows["gang"]]
    assert sorted(held[:, GROUP].tolist()).count(0) == 1
    assert zones_of(harness, "gang") == {"b": 2}


def test_pods_of_no_job_count() -> None:
    harness = harness_of()
    for i in range(4):
        harness.happen(PodsCounted(0, f"n{i}", {"web": 1}))
    for number in range(2):
        harness.submit(make_job(f"j{number}", rules=(APART,)))
    harness.cycle()
    assert nodes_of(harness, "j0") + nodes_of(harness, "j1") == ["n4"]
    harness.happen(PodsCounted(harness.now, "n2"))
    harness.cycle()
    assert sorted(nodes_of(harness, "j0") + nodes_of(harness, "j1")) == ["n2", "n4"]


def test_rules_of_a_running_job_change() -> None:
    harness = harness_of(nodes=1)
    harness.submit(make_job("old"))
    harness.cycle()
    harness.submit(make_job("new", rules=(APART,)))
    harness.happen(JobRuled(harness.now, "old", (PodRules(("web",)),)))
    harness.cycle()
    assert nodes_of(harness, "new") == []
    harness.happen(JobRuled(harness.now, "old", ()))
    harness.cycle()
    assert nodes_of(harness, "new") == ["n0"]


def test_a_class_that_is_asked_for_later_counts_who_was_there() -> None:
    harness = harness_of(nodes=2)
    harness.submit(make_job("there", 4, rules=(PodRules(("web",)),)))
    harness.cycle()
    harness.happen(PodsCounted(harness.now, "n1", {"web": 1}))
    harness.submit(make_job("j", rules=(PodRules((), (PodAntiAffinity("web", "zone"),)),)))
    harness.cycle()
    assert nodes_of(harness, "j") == []


def test_nodes_that_leave_take_their_domain_with_them() -> None:
    harness = harness_of()
    rules = PodRules(("web",), spread=(TopologySpread("web", "zone", 1),))
    for number in range(4):
        harness.submit(make_job(f"j{number}", rules=(rules,)))
    harness.cycle()
    gone = next(f"j{number}" for number in range(4) if nodes_of(harness, f"j{number}") == ["n4"])
    harness.cancel(gone)
    harness.happen(NodesLeft(harness.now, ("n4",)))
    for number in range(4, 8):
        harness.submit(make_job(f"j{number}", rules=(rules,)))
    harness.cycle()
    assert sorted(zones_of(harness, *(f"j{number}" for number in range(8) if f"j{number}" != gone)).values()) == [3, 4]
    harness.happen(NodesJoined(harness.now, (Node("n4", 4, leaf="leaf1"),)))
    harness.happen(TopologyChanged(harness.now, "zone", {"n4": "c"}))
    harness.submit(make_job("last", rules=(rules,)))
    harness.cycle()
    assert nodes_of(harness, "last") == ["n4"]
