"""Rules among pods and exact amounts: at most so many of a class in a domain, at least one, spread evenly."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from kant.cluster.journal import Header, Journal, read_lines
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import fact_sentence
from kant.insight.find_facts import find_facts
from kant.insight.find_suggestions import ends
from kant.insight.start_explanation import explain_start
from kant.model.event import JobRuled, NodeSetChanged, NodesJoined, NodesLeft, PodsCounted, TopologyChanged
from kant.model.node import ClusterSpec, Node
from kant.model.placement import COUNTED, GROUP, NODE, PODS, WIDTH
from kant.model.rules import PodAffinity, PodAntiAffinity, PodRules, TopologySpread
from kant.model.units import SECOND
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_group, make_job, make_profile

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


@pytest.mark.parametrize("profile", ["easy", "conservative", "kant"])
def test_why_says_that_no_start_is_reserved_under_an_amount_of_the_whole_cluster(profile: str) -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    capped = (PodRules(shared=(("power", 4000, 4000),)),)
    harness.submit(make_job("runs", 4, estimate=60, rules=capped))
    harness.submit(make_job("waits", 4, estimate=60, rules=capped))
    harness.submit(make_job("runs too", 4, estimate=60))
    harness.submit(make_job("plain", 4, estimate=60))
    harness.cycle()
    diagnosis = Diagnosis(harness.scheduler)
    assert set(harness.state.pending) == {1, 3}
    assert (3 in harness.state.reserved) <= (profile != "kant") and 1 not in harness.state.reserved
    for row in (1, 3):
        said = [fact_sentence(fact) for fact in find_facts(diagnosis, row, diagnosis.why(row))]
        assert any("no start is reserved for it" in fact for fact in said) == (row == 1 and profile != "kant")


def test_why_says_the_rule_that_stands_in_the_way() -> None:
    harness = harness_of(nodes=4)
    for number in range(3):
        harness.submit(make_job(f"j{number}", rules=(APART,)))
    harness.submit(make_job("waits", 1, 2, rules=(APART,)))
    harness.submit(make_job("last", rules=(PodRules((), (PodAntiAffinity("web"),), (PodAffinity("db", "zone"),)),)))
    harness.cycle()
    diagnosis = Diagnosis(harness.scheduler)
    said = {}
    for job in ("waits", "last"):
        row = harness.state.rows[job]
        said[job] = [fact_sentence(fact) for fact in find_facts(diagnosis, row, diagnosis.why(row))]
    assert "3 nodes with room: anti-affinity with class web" in said["waits"]
    assert "4 nodes with room: affinity to class db in one zone" in said["last"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_journal_replays_to_the_same_counts_and_the_same_plan(profile: str) -> None:
    harness = busy(profile)
    lines = list[bytes]()
    journal = Journal(lines.append)
    journal.write(Header("1", "w", "p", 0, harness.state.spec))
    for event in harness.events:
        journal.write(event)
    assert all(len(piece) < WIDTH for line in lines for piece in msgspec.json.decode(line).get("allocation", ()))
    state = harness.profile.new_state(harness.state.spec)
    for record in list(read_lines(iter(lines), "f"))[1:]:
        state.apply(record)  # type: ignore[arg-type]
    state.check()
    assert np.array_equal(state.table, harness.state.table)
    harness.submit(make_job("next", 1, 2, rules=(APART,)))
    state.apply(harness.events[-1])
    plan, fresh = harness.cycle(), Scheduler(state, harness.profile, 0).cycle(harness.now)
    assert repr(plan.decisions) == repr(fresh.decisions) and plan.decisions


def test_a_scheduler_that_begins_anew_decides_the_same() -> None:
    harness = busy("kant")
    harness.submit(make_job("next", 1, 2, rules=(APART,)))
    fresh = Scheduler(harness.state, harness.profile, 0).cycle(harness.now)
    assert repr(harness.cycle().decisions) == repr(fresh.decisions)


def busy(profile: str) -> Harness:
    """Jobs of all kinds of rules that have come and gone."""
    harness = harness_of(profile)
    kinds = [
        APART,
        PodRules(("web", "db"), (PodAntiAffinity("db", "zone", 1),)),
        PodRules(("db",), affinity=(PodAffinity("web", "zone"),)),
        PodRules(("db",), spread=(TopologySpread("db", "zone", 2),)),
    ]
    for number in range(12):
        harness.submit(make_job(f"j{number}", rules=(kinds[number % 4],)))
        harness.cycle()
        if number % 5 == 4 and harness.running():
            harness.finish(harness.running()[0])
    harness.happen(PodsCounted(harness.now, "n3", {"web": 1}))
    harness.cycle()
    assert len(harness.running()) > 4
    for job in harness.running()[:3]:
        harness.finish(job)
    return harness


def test_a_promise_keeps_the_rules_of_its_node() -> None:
    """The pod is promised the node that one of its class leaves first, and nobody of it comes between."""
    harness = harness_of("conservative", nodes=2)
    for number, estimate in enumerate((100, 50)):
        harness.submit(make_job(f"j{number}", 1, rules=(APART,), estimate=estimate * SECOND))
    harness.cycle()
    harness.submit(make_job("next", 1, rules=(APART,), estimate=100 * SECOND))
    harness.cycle()
    promise = harness.state.reserved[harness.state.rows["next"]]
    assert promise.start == 50 * SECOND
    assert [harness.state.nodes[node].name for node in promise.allocation[:, NODE]] == nodes_of(harness, "j1")


@pytest.mark.parametrize("preempted", ["rule", "amount"])
def test_a_victim_makes_room_under_a_rule(preempted: str) -> None:
    """The urgent job has GPUs everywhere, and lacks only what the rule says."""
    nodes = tuple(Node(f"n{i}", 8, amounts=(("fpga", 1),)) for i in range(2))
    profile = make_profile("fifo", "best-effort", "best-fit", Preemption(min_run_s=0))
    harness = Harness(ClusterSpec("test", nodes), profile)
    rules = APART if preempted == "rule" else PodRules(amounts=(("fpga", 1),))
    harness.submit(make_job("small", 1, rules=(rules,)), make_job("large", 2, rules=(rules,)))
    harness.cycle()
    harness.now += 10 * SECOND
    harness.submit(make_job("urgent", 1, rules=(rules,), priority=9))
    harness.cycle()
    assert sorted(harness.running()) == ["large", "urgent"]


def test_groups_of_a_gang_that_want_each_other_stand_together() -> None:
    harness = harness_of()
    rules = (
        PodRules(("a",), affinity=(PodAffinity("b", "zone"),)),
        PodRules(("b",), affinity=(PodAffinity("a", "zone"),)),
    )
    harness.submit(make_job("gang", groups=(make_group(4), make_group(3)), rules=rules))
    harness.cycle()
    zones = zones_of(harness, "gang")
    assert len(zones) == 1 and zones.total() == 2


def test_the_first_of_a_class_is_free_only_where_none_of_its_terms_finds_a_pod() -> None:
    harness = harness_of()
    harness.happen(TopologyChanged(0, "rack", {"n0": "r0", "n2": "r1"}))
    harness.happen(PodsCounted(0, "n1", {"web": 1}))
    both = PodRules(("web",), affinity=(PodAffinity("web", "zone"), PodAffinity("web", "rack")))
    harness.submit(make_job("j", rules=(both,)))
    harness.cycle()
    assert nodes_of(harness, "j") == [], "a pod of its class is in a zone, and in no rack"


def test_a_victim_on_another_node_of_the_zone_opens_it() -> None:
    nodes = (Node("n0", 1), Node("n1", 4), Node("n2", 1))
    harness = Harness(
        ClusterSpec("test", nodes), make_profile("fifo", "best-effort", "best-fit", Preemption(min_run_s=0))
    )
    harness.happen(TopologyChanged(0, "zone", {"n0": "a", "n1": "a", "n2": "b"}))
    rules = PodRules(("web",), (PodAntiAffinity("web", "zone"),))
    harness.submit(make_job("small", 1, rules=(rules,)), make_job("other", 1))
    harness.cycle()
    harness.now += 10 * SECOND
    harness.submit(make_job("urgent", 4, rules=(rules,), priority=9))
    harness.cycle()
    assert "urgent" in harness.running() and nodes_of(harness, "urgent") == ["n1"]


def test_an_elastic_gang_grows_by_its_rules() -> None:
    harness = harness_of(nodes=4)
    harness.happen(PodsCounted(0, "n3", {"web": 1}))
    harness.submit(make_job("gang", 1, 4, floor=2, rules=(APART,)))
    harness.cycle()
    assert nodes_of(harness, "gang") == ["n0", "n1", "n2"]
    harness.happen(PodsCounted(harness.now, "n3"))
    harness.now += 10_000 * SECOND
    harness.cycle()
    assert nodes_of(harness, "gang") == ["n0", "n1", "n2", "n3"]


def test_several_new_pods_of_an_elastic_gang_go_to_zones_of_their_own() -> None:
    harness = harness_of()
    assert all(policy.preferred_level for policy in harness.scheduler.placer.policies)
    for node in ("n2", "n4"):
        harness.happen(PodsCounted(0, node, {"web": 1}))
    harness.submit(make_job("gang", 1, 3, floor=1, rules=(PodRules(("web",), (PodAntiAffinity("web", "zone"),)),)))
    harness.cycle()
    assert zones_of(harness, "gang") == {"a": 1}
    for node in ("n2", "n4"):
        harness.happen(PodsCounted(harness.now, node))
    harness.now += 10_000 * SECOND
    harness.cycle()
    assert zones_of(harness, "gang") == {"a": 1, "b": 1, "c": 1}


def test_an_answer_before_any_cycle_reads_the_nodes_with_their_new_columns() -> None:
    """A first class widens the rows of nodes, and an answer then looks at these and not at those of the scheduler."""
    harness = harness_of(nodes=2, gpus=4)
    harness.submit(make_job("runs", 4))
    harness.cycle()
    harness.submit(make_job("waits", 4, 2, rules=(APART,)))
    diagnosis = Diagnosis(harness.scheduler)
    assert diagnosis.placer is harness.scheduler.placer
    assert diagnosis.placer.trial.table.shape == harness.state.table.shape
    (found,) = ends(diagnosis, harness.state.rows["waits"], harness.state.shape_of(harness.state.rows["waits"]))
    assert found.jobs == ("runs",)


def test_a_start_is_explained_by_the_place_that_a_journal_says() -> None:
    """What pods count as is in no journal, and makes no other place of it."""
    harness = harness_of(nodes=2)
    harness.submit(make_job("j", rules=(APART,)))
    place = harness.scheduler.cycle(harness.state.now).decisions[0].allocation  # type: ignore[union-attr]
    assert place[0, COUNTED] > 0
    said = place.copy()
    said[:, COUNTED] = 0
    fresh = Scheduler(harness.state, builtin_profile("kant"))
    assert explain_start(fresh, "j", harness.state.now, said).agrees


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "fifo"])
@pytest.mark.parametrize(
    ("rules", "before"),
    [
        (PodRules((), affinity=(PodAffinity("db", "zone"),)), 0),
        (PodRules(("db",), spread=(TopologySpread("db", "zone"),)), 1),
    ],
    ids=["affinity", "spread"],
)
def test_a_job_that_waits_for_pods_starts_right_after_them(name: str, rules: PodRules, before: int) -> None:
    """They come later and start in a plan that has tried it before them. Nothing else happens then."""
    harness = harness_of(name, nodes=3)
    harness.happen(PodsCounted(0, "n0", {"db": before}, {}))
    harness.happen(NodeSetChanged(0, "here", ("n0",)))
    harness.happen(NodeSetChanged(0, "there", ("n2",)))
    harness.submit(make_job("waits", rules=(rules,), node_set="here", estimate=SECOND))
    harness.submit(make_job("db", rules=(PodRules(("db",)),), node_set="there" if before else "here", estimate=SECOND))
    harness.cycle()
    harness.run(until=SECOND)
    assert harness.running() == ["db", "waits"]
