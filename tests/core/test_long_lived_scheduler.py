"""What a scheduler keeps between cycles changes no decision: the cases in which that is hardest."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.core.elastic_runs import elastic_arrivals
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.core.test_state_machine import said
from tests.examples import part
from tests.kube.processes import Forked

from kant.cluster.snapshot import Snapshot, Trial
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Plan, Start
from kant.model.errors import StateError
from kant.model.event import JobStarted, JobSubmitted, NodeSetChanged, QueuesChanged, TypicalPodsGiven
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import QueueConfig
from kant.model.units import SECOND
from kant.placement.placer import Placer
from kant.queueing.growth import Elastic
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.cycle import Scheduler
from kant.testing import (
    Harness,
    at_random,
    make_cluster,
    make_group,
    make_job,
    make_named_policy,
    make_profile,
    submitted,
)
from kant.testing.conformance_placement import check_placement, same
from kant.testing.drawn import Mould, draw_cluster, generator
from kant.testing.harness import never

pytestmark = pytest.mark.long

RIGHTS = {
    "none": None,
    "priority": Preemption(min_run_s=60, reclaim="off"),
    "nominal": Preemption(min_run_s=60),
    "fair-share": Preemption(min_run_s=60, reclaim="fair-share"),
}
NODE_SETS = ("s0", "s1")
DISCIPLINES = (
    "strict",
    "best-effort",
    {"policy": "backfill", "timeout_s": 300},
    {"policy": "easy", "timeout_s": 300},
    {"policy": "conservative", "timeout_s": 300},
)


def starts(plan: Plan) -> dict[str, list[list[int]]]:
    return {d.job: d.allocation.tolist() for d in plan.decisions if isinstance(d, Start)}


def test_a_snapshot_follows_when_what_was_tried_and_what_happened_together_fill_the_log() -> None:
    """Node 15 is tried first and not carried out; then node 0 is tried over and over, and other nodes change."""
    spec = make_cluster(*[8] * 16)

    def device(node: int) -> np.ndarray:
        return np.array([[node, 1, 1, 1000, 0, 0, 1, 0, 0]], dtype=np.int64)

    stale = []
    for tries in range(80):
        state = ClusterState(spec)
        snapshot = Snapshot(state)
        trial = Trial(snapshot)
        trial.restore(device(15))
        for _ in range(tries):
            trial.restore(device(0))
            trial.evict(device(0))
        for node in range(1, 13):
            state.apply(submitted(make_job(f"j{node}")))
            state.apply(JobStarted(0, f"j{node}", device(node)))
        snapshot.refresh(0)
        if not np.array_equal(snapshot.table, state.table):
            stale.append(tries)
    assert not stale, "after so many tries the snapshot still shows node 15 as it was tried"


def test_a_new_mix_of_typical_pods_counts_at_once_for_every_node() -> None:
    harness = Harness(make_cluster(2, 4), make_profile(placement="fgd"))
    harness.happen(TypicalPodsGiven(0, np.array([[0, 4, 1000, 1, 1]], dtype=np.int64)))
    harness.submit(make_job("a", milli=500))
    harness.cycle()
    harness.finish("a")
    harness.happen(TypicalPodsGiven(0, np.array([[0, 2, 1000, 1, 5], [0, 1, 1000, 1, 5]], dtype=np.int64)))
    harness.submit(make_job("b", milli=500))
    fresh = Scheduler(harness.state, harness.profile).cycle(0)
    assert starts(harness.cycle()) == starts(fresh)


def test_a_gang_of_two_groups_that_comes_to_fit_because_another_job_starts_is_seen_to_fit() -> None:
    """Best fit puts the small group of x on A, where its large group would have to go; once y fills B, it does not."""
    nodes = (Node("A", 2, cpu=4000, memory=1), Node("B", 3, cpu=2000, memory=9), Node("C", 8, cpu=9000))
    harness = Harness(ClusterSpec("test", nodes), make_profile("fifo", "best-effort", "best-fit"))
    harness.submit(make_job("fills C", 8, cpu=9000))
    harness.cycle()
    harness.submit(make_job("x", groups=(make_group(1), make_group(2, cpu=4000))))
    harness.cycle()
    harness.submit(make_job("y", 2, memory=5))
    harness.cycle()
    fresh = Scheduler(harness.state, harness.profile).cycle(0)
    assert starts(harness.cycle()) == starts(fresh)


def test_a_gang_that_the_empty_cluster_takes_is_not_rejected() -> None:
    """The groups of the gang fit together (the first on B, the second on A), though not in best fit's first choice."""
    nodes = (Node("A", 2, cpu=4000), Node("B", 3, cpu=2000))
    harness = Harness(ClusterSpec("test", nodes), make_profile("fifo", "best-effort", "best-fit"))
    harness.submit(make_job("x", groups=(make_group(1), make_group(2, cpu=4000))))
    harness.cycle()
    assert harness.running() == ["x"] or harness.waiting() == ["x"]


def test_pods_with_shares_of_several_devices_get_devices_that_are_there() -> None:
    """Room for 3 + 1 shares is room for one pod of two devices, not for two."""
    state = ClusterState(make_cluster(2))
    state.apply(submitted(make_job("half", milli=500)))
    state.apply(JobStarted(0, "half", np.array([[0, 1, 1, 500, 0, 0, 0]], dtype=np.int64)))
    gang = make_job("gang", gpus=2, pods=2, milli=300)
    state.apply(submitted(gang))
    result = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0).place(state.shape_of(1), 1)
    assert isinstance(result, NoFit) and same(result, NoFit(0, 2, 1))


def test_placement_policies_keep_their_rules_with_shares_of_several_devices() -> None:
    for name in ("best-fit", "consolidated", "fgd"):
        check_placement(make_named_policy("placement", name), 6, 0, Mould(shares_of_several=True))


POLICY = """
from kant.compiled import inlined
from kant.placement.policy import NodePolicy
from kant.testing import Harness, at_random, make_cluster, make_job, make_profile

@inlined
def score(table, node, demands, d, typical, params, draw):
    return int({score})

class Mine(NodePolicy, frozen=True, tag="mine"):
    score = staticmethod(score)

harness = Harness(make_cluster(2, 4), make_profile(placement=Mine()), check=False)
harness.submit(make_job("a"))
harness.cycle()
print(harness.nodes_of("a"))
"""


def importing(folder: Path) -> None:
    """Import `mine` of this folder, and leave no byte code."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    importlib.import_module("mine")


def test_a_policy_of_ones_own_that_is_edited_is_compiled_anew(tmp_path: Path) -> None:
    """The cache of compiled kernels must not know a policy by its name alone."""
    chosen = []
    for score in ("table[node, 4]", "100000 - table[node, 4]"):
        (tmp_path / "mine.py").write_text(POLICY.format(score=score))
        (tmp_path / score).touch()
        assert Forked(partial(importing, tmp_path), tmp_path / score).wait() == 0
        chosen.append((tmp_path / score).read_text().strip())
    assert chosen == ["['n1']", "['n0']"]


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
def test_among_tenants_a_scheduler_that_lived_long_decides_as_a_fresh_one(discipline: Any, rights: str) -> None:
    """Also with burst replicas, time limits, nodes that fail, join, leave and change, sets and queues that change."""
    seeds = part(range(6), DISCIPLINES.index(discipline) + list(RIGHTS).index(rights), 3)
    assert sum(compared(seed, discipline, rights) for seed in seeds) > 20 * len(seeds)


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
def test_so_it_does_with_elastic_gangs(discipline: Any, rights: str) -> None:
    """Also where a plan opens what a gang could not grow into before, and where a gang that grows ends sooner."""
    drawn = (3, "best-fit"), (8, "best-fit"), (4, "e-binpack"), (5, "e-binpack")
    for seed, placement in part(drawn, DISCIPLINES.index(discipline) + list(RIGHTS).index(rights), 4):
        assert compared(seed, discipline, rights, Elastic(grow_s=100), placement) > 20


def compared(
    seed: int, discipline: Any, rights: str, elastic: Elastic | None = None, placement: str = "best-fit"
) -> int:
    """The plans of one run, each compared with that of a scheduler born at this moment; `elastic`: most gangs are."""
    plans = 0

    def watch(harness: Harness) -> None:
        def compare(plan: Plan) -> None:
            nonlocal plans
            plans += 1
            fresh = Scheduler(harness.state, harness.profile, harness.seed).cycle(plan.time)
            assert said(plan) == said(fresh), f"seed {seed}"

        harness.before_carrying_out = compare

    among_tenants(seed, discipline, rights, watch, elastic, placement)
    return plans


def among_tenants(
    seed: int,
    discipline: Any,
    rights: str,
    watch: Callable[[Harness], None],
    elastic: Elastic | None = None,
    placement: str = "best-fit",
) -> Harness:
    """One run among tenants, drawn by the seed; `watch` gets the harness before anything happens but the queues."""
    draw = generator(seed)
    spec = draw_cluster(draw, 5)
    queues = draw_queues(draw, spec)
    order = str(draw.choice(["fifo", "sjf", "aged", "drf", "fair-share"]))
    profile = make_profile(order, discipline, placement, RIGHTS[rights], Requeue(base_s=30 * int(seed % 5 == 0)),
                           elastic=elastic)  # fmt: skip
    harness = Harness(spec, profile, seed=seed, check=False, refuse=at_random(0.2, seed) if seed % 4 == 3 else never)
    if seed % 3:
        harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
    watch(harness)
    jobs = draw_tenants_jobs(draw, queues, 40)
    jobs = elastic_arrivals(draw, jobs) if elastic is not None else jobs
    sets, fleet = generator(1000 + seed), seed % 3 != 2
    for at, event in enumerate(jobs):
        harness.run(until=event.time)
        harness.now = event.time
        if seed % 2 and sets.integers(4) == 0:
            change_a_node_set(sets, harness)
        if fleet and sets.integers(3) == 0:
            change_fleet(sets, harness, generator(at), draw_cluster(generator(seed + at), 5).nodes)
        chance, there = int(draw.integers(10)), list(harness.state.node_index)
        if chance == 0 and seed % 3:
            harness.set_queues(*draw_queues(draw, spec))
        elif chance == 1 and there:
            harness.fail(there[at % len(there)])
        elif chance == 2 and there:
            harness.bring_back(there[at % len(there)])
        event = with_core(draw, harness, event, seed)
        if seed % 2 and sets.integers(3) == 0:
            job = msgspec.structs.replace(event.job, node_set=str(sets.choice(NODE_SETS)))
            event = JobSubmitted(event.time, job, event.runtime)
        harness.run([event], until=event.time)
    harness.run()
    return harness


def change_a_node_set(draw: np.random.Generator, harness: Harness) -> None:
    """Each node of the cluster changes sides or stays, by the draw."""
    state, name = harness.state, str(draw.choice(NODE_SETS))
    there = set(state.shapes.node_sets.nodes(name))
    moved = [node for node in state.node_index.values() if draw.integers(2)]
    names = [node.name for node in state.nodes]
    added = tuple(names[node] for node in moved if node not in there)
    harness.happen(NodeSetChanged(harness.now, name, added, tuple(names[node] for node in moved if node in there)))


def change_fleet(
    draw: np.random.Generator, harness: Harness, pick: np.random.Generator, drawn: tuple[Node, ...]
) -> None:
    """Nodes join, old ones or new, or one leaves, or is another from now on."""
    state = harness.state
    there = list(state.node_index)
    gone = [node for node in state.nodes if node.name and node.name not in there]
    new = [msgspec.structs.replace(node, name=f"{node.name}-{len(harness.events)}") for node in drawn]
    what = int(draw.integers(4))
    if what == 0 and len(there) < 12:
        harness.join(
            *(gone[: int(pick.integers(1, 3))] if gone and pick.integers(2) else new[: int(pick.integers(1, 4))])
        )
    elif what == 1 and there:
        harness.leave(str(pick.choice(there)))
    elif there:
        node = msgspec.structs.replace(drawn[0], name=str(pick.choice(there)))
        try:
            harness.describe(node)
        except StateError:
            harness.evict(*harness.jobs_on(node.name))
            harness.describe(node)


def with_core(draw: np.random.Generator, harness: Harness, event: JobSubmitted, seed: int) -> JobSubmitted:
    """In some runs a job may have a limit, or be a burst replica of one that lives."""
    job, state = event.job, harness.state
    if seed % 5 == 1 and draw.integers(3) == 0:
        job = msgspec.structs.replace(job, limit=int(draw.integers(100, 900)) * SECOND)
    bases = [state.ids[row] for row, other in state.live.items() if not other.base_job]
    if seed % 4 == 2 and bases and draw.integers(3) == 0:
        job = msgspec.structs.replace(job, base_job=bases[int(draw.integers(len(bases)))])
    return JobSubmitted(event.time, job, event.runtime)


@pytest.mark.parametrize("ended", ["b0", "b1", "b3"])
def test_a_late_head_asks_for_the_end_of_the_next_minimum_run_time_whichever_job_ends(ended: str) -> None:
    """Four jobs passed the head and are protected until 302 to 305 s."""
    rights = Preemption(min_run_s=300, reclaim="off")
    harness = Harness(make_cluster(8), make_profile("fifo", {"policy": "backfill", "timeout_s": 10}, preemption=rights))
    harness.submit(make_job("stays", 3, preemptible=False), make_job("ends", 4, preemptible=False))
    harness.cycle(0)
    harness.now = SECOND
    harness.submit(make_job("head", pods=5))
    for second in range(2, 6):
        harness.cycle(second * SECOND)
        if second == 3:
            harness.finish("ends")
        harness.submit(make_job(f"b{second - 2}"))
        harness.cycle()
    assert harness.cycle(20 * SECOND).review_at == 302 * SECOND
    harness.finish(ended)
    fresh = Scheduler(harness.state, harness.profile).cycle(harness.now)
    assert said(harness.cycle()) == said(fresh)
