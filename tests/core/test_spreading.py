"""Spread and E-Spread: services are spread evenly, and the inference zone follows their demand by its rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.test_domains import filled, topology
from tests.core.test_state_machine import said
from tests.examples import examples

from kant.cluster.columns import J_RETURNS
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Plan, Preempt
from kant.model.errors import InputError, StateError
from kant.model.event import JobStarted
from kant.model.job import Job, PodGroup
from kant.model.placement import NODE, PODS
from kant.placement.placer import Placer
from kant.placement.policies.spread import Spread
from kant.placement.spreading.inference_zone import InferenceZone
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import Harness, make_job, make_jobs, make_profile, submitted
from kant.testing.drawn import draw_arrivals, draw_cluster, generator
from kant.testing.naive import admits, pods_that_fit, pods_that_fit_anywhere
from kant.testing.strategies import demands


def zoned(**fields: Any) -> Profile:
    """Training e-binpack, jobs called chat* spread in an inference zone."""
    workload = {"names": ["chat*"], "placement": {"policy": "e-spread", **fields}}
    return make_profile(placement="e-binpack", workloads=[workload])


def named(job: Job, service: str) -> Job:
    return msgspec.structs.replace(job, name=service)


def replica(harness: Harness, name: str, gpus: int = 1, service: str = "chat") -> None:
    harness.submit(named(make_job(name, gpus, submit=harness.now), service))


def zone_of(harness: Harness | Scheduler) -> set[str]:
    """The leaves of the zone, as a scheduler that knows nothing but the state sees it."""
    profile, state = harness.profile, harness.state
    placer = Placer(Snapshot(state), profile.placement, 0, profile.placements)
    zone = placer.zone
    assert zone is not None
    zone.refresh()
    return {state.spec.nodes[node].leaf for node in np.flatnonzero(zone.closed).tolist()}


def leaves_of(harness: Harness, *jobs: str) -> Counter[str]:
    """Pods by leaf."""
    nodes = {node.name: node.leaf for node in harness.state.spec.nodes}
    return Counter(nodes[node] for job in jobs for node in harness.nodes_of(job))


# --- spread ------------------------------------------------------------------------------------------------------


@given(filled(), st.integers(1, 12), demands(), st.integers(0, 3))
@settings(max_examples=examples(50), deadline=None)
def test_spread_is_even_as_far_as_there_is_room(state: ClusterState, pods: int, demand: Any, before: int) -> None:
    """No node that takes another pod has two fewer pods of the service than one that the gang chose."""
    spec, policy = state.spec, Spread()
    counts: Counter[int] = Counter()
    for number in range(before + 1):
        job = Job(f"j{number}", 0, (PodGroup(pods, demand),), name="chat")
        state.apply(submitted(job, at=0))
        placer = Placer(Snapshot(state), policy, 0)
        result = placer.place(state.shape_of(state.rows[job.id]), state.rows[job.id])
        fits = pods_that_fit_anywhere(spec, state.table, job, demand)
        if isinstance(result, NoFit):
            assert result.fits == fits < pods
            return
        assert fits >= pods
        chosen = set(result[:, NODE].tolist())
        for node, count in result[:, [NODE, PODS]].tolist():
            counts[node] += count
        table = placer.snapshot.table
        for node, one in enumerate(spec.nodes):
            if admits(one, job) and pods_that_fit(one, table[node], demand) > 0:
                assert counts[node] >= max(counts[other] for other in chosen) - 1
        state.apply(JobStarted(0, job.id, result))


def test_replicas_go_to_different_nodes_and_leaves_also_when_they_come_one_by_one() -> None:
    harness = Harness(topology(2, 2, 2, 2), make_profile(placement="spread"))
    for number in range(4):
        replica(harness, f"r{number}")
    harness.cycle()
    assert leaves_of(harness, *(f"r{i}" for i in range(4))) == {f"leaf{i}": 1 for i in range(4)}
    harness.submit(named(make_job("gang", pods=4), "chat"))
    harness.cycle()
    names = [node for job in ("r0", "r1", "r2", "r3", "gang") for node in harness.nodes_of(job)]
    assert Counter(names) == {f"n{i}": 1 for i in range(8)}


def test_a_burst_keeps_apart_from_its_core_and_another_service_does_not() -> None:
    harness = Harness(topology(2, 2), make_profile(placement="e-spread"))
    harness.submit(make_job("core"))
    harness.cycle()
    harness.submit(make_job("burst", base_job="core"))
    harness.submit(make_job("other"))
    harness.cycle()
    assert harness.nodes_of("burst") != harness.nodes_of("core")
    assert harness.nodes_of("other") == harness.nodes_of("core")


# --- chosen per workload -----------------------------------------------------------------------------------------


def test_the_first_workload_that_matches_places_a_job() -> None:
    tables = [
        {"queues": ["online"], "gpus_at_most": 2, "placement": {"policy": "worst-fit"}},
        {"users": ["a*"], "priority_at_least": 5, "preemptible": False, "placement": {"policy": "first-fit"}},
        {"pods_at_least": 2, "pods_at_most": 3, "gpus_at_least": 4, "placement": {"policy": "spread"}},
    ]
    profile = make_profile(workloads=tables)
    state = ClusterState(topology(2), workloads=profile.matches)
    placer = Placer(Snapshot(state), profile.placement, 0, profile.placements)
    for job, expected in (
        (make_job("a", 2, queue="online"), "worst-fit"),
        (make_job("b", 3, queue="online"), "best-fit"),
        (make_job("c", user="anna", priority=5, preemptible=False), "first-fit"),
        (make_job("d", user="anna", priority=4, preemptible=False), "best-fit"),
        (make_job("e", user="anna", priority=5), "best-fit"),
        (make_job("f", user="bert", priority=5, preemptible=False), "best-fit"),
        (make_job("g", 2, pods=2), "spread"),
        (make_job("h", 1, pods=3), "best-fit"),
        (make_job("i", 1, pods=4), "best-fit"),
    ):
        assert placer.policy_of(state.shapes.of(job)).__struct_config__.tag == expected, job
    with pytest.raises(StateError, match="distinguish the profile's workloads"):
        Scheduler(ClusterState(topology(2)), profile)


HEAD = 'order = { policy = "fifo" }\ndiscipline = { policy = "strict" }\nplacement = { policy = "e-binpack" }\n'
ZONE = '[[workloads]]\nplacement = { policy = "e-spread" }\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "workloads = 3", "p: workloads: expected [[workloads]] tables, got 3"),
        (HEAD + "[[workloads]]\nname = 3", "p: workloads 1.name: expected text, got 3"),
        (HEAD + ZONE + "[[workloads]]\n", "p: workloads 2.placement: expected a table with a `policy`"),
        (HEAD + ZONE + "gpu = 3\n", "p: workloads 1: expected a table of valid fields (name, placement, queues"),
        (HEAD + ZONE + "gpus_at_most = -1\n", "Expected `int` >= 0 - at `$.gpus_at_most`"),
        (HEAD + ZONE.replace("e-spread", "spred"), "p: workloads 1.placement.policy: expected one of best-fit, "),
        (HEAD + ZONE.replace(" }", ", grow_at = 50 }"), "`shrink_at` must be less than `grow_at`"),
        (HEAD + ZONE + ZONE.replace(" }", ", least = 5 }"), "one inference zone, that is, the same fields"),
        (
            HEAD.replace("e-binpack", "fgd") + ZONE,
            "p: placement: expected one of e-binpack, e-spread, kant, as another",
        ),
    ],
)
def test_what_cannot_be_a_workload_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_profile(text, "p")
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


# --- the zone ----------------------------------------------------------------------------------------------------


def test_the_zone_grows_with_demand_shrinks_below_it_and_stops_nobody() -> None:
    harness = Harness(topology(2, 2, 2, 2, gpus=4), zoned(least=1, most=75, grow_at=80, shrink_at=40))
    assert zone_of(harness) == set()
    sizes = []
    for number in range(24):
        replica(harness, f"r{number}")
        harness.cycle()
        sizes.append(len(zone_of(harness)))
    assert sizes == [1] * 6 + [2] * 6 + [3] * 12, "8 GPUs a leaf: beyond 80 % of 8, of 16; three is the most"
    assert len(harness.running()) == 24
    for number in range(22):
        held = leaves_of(harness, *(f"r{i}" for i in range(number, 24)))
        zone = zone_of(harness)
        assert zone == set(sorted(held, key=lambda leaf: (-held[leaf], leaf))[: len(zone)]), "the fewest replicas leave"
        harness.finish(f"r{number}")
        harness.cycle()
    assert len(zone_of(harness)) == 1
    assert not [d for plan in harness.plans for d in plan.decisions if isinstance(d, Preempt)]


def test_it_grows_into_the_leaf_with_the_fewest_whole_nodes() -> None:
    harness = Harness(topology(3, 3, 3), zoned(least=1))
    for name, pods in (("first", 3), ("second", 2)):  # a whole leaf, and two nodes of another
        harness.submit(make_job(name, 8, pods=pods, within="leaf"))
        harness.cycle()
    replica(harness, "r0")
    harness.cycle()
    assert leaves_of(harness, "r0").keys() == leaves_of(harness, "second").keys() == zone_of(harness)


def test_training_goes_into_the_zone_last_and_a_replica_is_never_refused_what_is_free() -> None:
    harness = Harness(topology(1, 1, 1), zoned(least=1, most=40))
    replica(harness, "r0")
    harness.cycle()
    zone = zone_of(harness)
    for number in range(16):
        harness.submit(make_job(f"t{number}"))
        harness.cycle()
        assert not leaves_of(harness, f"t{number}").keys() & zone
    for number in range(4):
        harness.submit(make_job(f"late{number}"))
        harness.cycle()
        assert leaves_of(harness, f"late{number}").keys() == zone
    harness.finish("t0")
    for number in range(1, 6):
        replica(harness, f"r{number}")
    harness.cycle()
    assert len([job for job in harness.running() if job.startswith("r")]) == 5, "3 in the zone, and 1 beyond it"


@pytest.mark.long
@given(st.integers(0, 10_000), st.integers(3, 11))
@example(58, 7)  # all but one replica happen to be in one leaf
@settings(max_examples=examples(8), deadline=None)
def test_under_a_constant_demand_the_zone_is_at_rest(seed: int, demand: int) -> None:
    """Replicas come and go, training does too; the demand stays: so does the size, and each leaf that has a replica."""
    harness = Harness(topology(2, 2, 2, 2, gpus=4), zoned(least=1, most=75, grow_at=80, shrink_at=40), seed=seed)
    draw = generator(seed)
    alive = []
    for number in range(demand):
        replica(harness, f"r{number}", service=f"chat{number % 3}")
        alive.append(f"r{number}")
    harness.cycle()
    zone, sizes = zone_of(harness), []
    training: list[str] = []
    for step in range(45):
        if len(training) == 4:
            harness.finish(training.pop(int(draw.integers(4))))
        training.append(f"t{step}")
        harness.submit(make_job(f"t{step}", int(draw.integers(1, 5)), submit=harness.now))
        gone = alive.pop(int(draw.integers(len(alive))))
        harness.finish(gone)
        kept = zone & leaves_of(harness, *alive).keys()
        replica(harness, f"s{step}", service=f"chat{step % 3}")
        alive.append(f"s{step}")
        harness.cycle()
        zone = zone_of(harness)
        assert zone >= kept
        sizes.append(len(zone))
    assert len(set(sizes)) == 1, sizes


def compare_with_fresh(harness: Harness) -> list[int]:
    """Lets every plan of the harness be compared with that of a scheduler which knows nothing but the state."""
    plans = []

    def compare(plan: Plan) -> None:
        fresh = Scheduler(harness.state, harness.profile, harness.seed)
        assert said(plan) == said(fresh.cycle(plan.time))
        for mine, other in zip(zones(harness.scheduler), zones(fresh), strict=False):
            mine.refresh()
            other.refresh()
            assert mine.closed.tolist() == other.closed.tolist()
            assert mine._cells.tolist() == other._cells.tolist()
            assert mine._waiting.tolist() == other._waiting.tolist()
        plans.append(len(plan.decisions))

    harness.before_carrying_out = compare
    return plans


def zones(scheduler: Scheduler) -> list[InferenceZone]:
    zone = scheduler.placer.zone
    return [zone] if zone is not None else []


@given(st.integers(0, 10_000))
@settings(max_examples=examples(6), deadline=None)
def test_with_a_zone_a_scheduler_that_lived_long_decides_as_a_fresh_one(seed: int) -> None:
    """Also: whatever fits somewhere is placed, whether or not it belongs into the zone."""
    draw = generator(seed)
    tables = [
        {"queues": ["online"], "placement": {"policy": "e-spread", "least": int(draw.integers(1, 3))}},
        {"queues": ["batch"], "gpus_at_most": 4, "placement": {"policy": "e-spread", "least": 1}},
    ]
    tables[1]["placement"] = tables[0]["placement"]
    profile = make_profile(placement="e-binpack", workloads=tables)
    harness = Harness(draw_cluster(draw, 9), profile, seed=seed, check=False)
    plans = compare_with_fresh(harness)

    def nobody_waits_in_vain(plan: Plan) -> None:
        state = harness.state
        for row in state.pending:
            job = state.live[row]
            if len(job.groups) == 1 and not job.within_required and state.jobs[row, J_RETURNS] == 0:
                fits = pods_that_fit_anywhere(state.spec, state.table, job, job.groups[0].demand)
                assert fits < job.groups[0].count, job

    harness.after_carrying_out = nobody_waits_in_vain
    harness.run(draw_arrivals(draw, 40))
    assert len(plans) > 20


def test_a_run_with_a_zone_replays_to_the_same_decisions(tmp_path: Path) -> None:
    jobs = make_jobs(
        submit=np.arange(120) * 60.0,
        runtime=[600 + 37 * (i % 50) for i in range(120)],
        gpus=[(1, 2, 1, 8, 4, 16)[i % 6] for i in range(120)],
        title=[i % 3 for i in range(120)],
    )
    jobs = dataclasses.replace(jobs, titles=("", "chat-a", "chat-b"))
    lines = BytesIO()
    profile = zoned()
    text = """
order = { policy = "fifo" }
discipline = { policy = "best-effort" }
placement = { policy = "e-binpack" }
workloads = [{ names = ["chat*"], placement = { policy = "e-spread" } }]
"""
    assert parse_profile(text, "x").strategies == profile.strategies
    result = simulate(jobs, topology(3, 3, 3), parse_profile(text, "x"), seed=3, hooks=RunHooks(journal=lines.write))
    path = tmp_path / "run.journal"
    path.write_bytes(lines.getvalue())
    again = replay(path)
    assert again.equal and again.recorded == result.summary["digest"]
