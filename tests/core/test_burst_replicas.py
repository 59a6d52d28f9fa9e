"""A burst replica starts as soon as its base job runs and there is room and quota for it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.tenant_runs import USERS, draw_queues
from tests.examples import examples
from tests.profiles import few

from kant.model.decision import Plan, Preempt, Start
from kant.model.event import JobSubmitted, QueuesChanged
from kant.model.job import Job
from kant.model.status import JobStatus
from kant.model.tenant import QueueConfig
from kant.model.units import HOUR, SECOND
from kant.queueing.requeue import Requeue
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts
from kant.sim.run import simulate
from kant.testing import Harness, make_cluster, make_job, make_jobs, make_profile
from kant.testing.drawn import generator

HEEDING = [
    name
    for name in builtin_texts()
    if builtin_profile(name).discipline.quotas and not builtin_profile(name).simulation.get("static")
]
"""The shipped profiles whose discipline heeds burst replicas."""

ONE_OF_EACH = ("fifo", "fifo-best-effort", "backfill", "easy", "conservative", "kant")


def starts(plan: Plan) -> list[str]:
    return [decision.job for decision in plan.decisions if isinstance(decision, Start)]


def startable_replicas(harness: Harness) -> list[str]:
    """The burst replicas that wait and that a scheduler which sees the state for the first time starts now.

    None where it evicts for them: what this cycle has started may be taken back for a job of higher priority.
    """
    again = Scheduler(harness.state, harness.profile, harness.seed).cycle(harness.now)
    if any(isinstance(decision, Preempt) for decision in again.decisions):
        return []
    live, rows = harness.state.live, harness.state.rows
    return [job for job in starts(again) if live[rows[job]].base_job]


def drawn_jobs(draw: np.random.Generator, queues: list[str], jobs: int) -> list[tuple[Job, int]]:
    """Jobs and their run times. Every other job is a burst replica of one before it, of any queue and priority."""
    made: list[tuple[Job, int]] = []
    for i in range(jobs):
        bases = [job.id for job, _ in made if not job.base_job]
        base = str(draw.choice(bases)) if bases and draw.integers(2) else ""
        runtime = int(draw.integers(1, 400)) * SECOND
        job = make_job(
            f"j{i}",
            int(draw.integers(1, 4)),
            int(draw.choice([1, 1, 1, 2])),
            queue=str(draw.choice(queues)),
            user=str(draw.choice(USERS)),
            priority=int(draw.choice([0, 0, 0, 1, 5])),
            estimate=runtime * int(draw.choice([1, 2])) if draw.integers(4) else -1,
            base_job=base,
            submit=int(draw.integers(0, 20)) * 10 * SECOND,
        )
        made.append((job, runtime))
    return made


def drawn_run(seed: int, profile: Profile) -> None:
    """Run drawn jobs. At the end of no cycle does a burst replica wait that can start, unless another cycle follows.

    Where jobs hold reservations the second look may choose other devices for them, so nothing is compared.
    """
    draw = generator(seed)
    spec = make_cluster(*draw.integers(1, 5, int(draw.integers(2, 5))).tolist())
    harness = Harness(spec, profile, seed=seed)
    queues = ["default"]
    if draw.integers(2):
        tenancy = draw_queues(draw, spec)
        harness.happen(QueuesChanged(0, QueueConfig(tuple(tenancy))))
        queues = [queue.name for queue in tenancy]

    def compare(plan: Plan) -> None:
        if not 0 <= plan.review_at <= plan.time + 1 and not harness.state.reserved:
            assert startable_replicas(harness) == [], f"seed {seed}, at {plan.time}"

    harness.after_carrying_out = compare
    coming = sorted(drawn_jobs(draw, queues, 16), key=lambda pair: pair[0].submit)
    for job, runtime in coming:
        harness.run(until=job.submit)
        harness.now = max(harness.now, job.submit)
        node = spec.nodes[int(draw.integers(len(spec.nodes)))].name
        chance = int(draw.integers(6))
        if chance == 0:
            harness.fail(node)
        elif chance == 1:
            harness.drain(node, harness.now + int(draw.integers(2)) * 50 * SECOND)
        elif chance == 2:
            harness.bring_back(node)
        base = harness.state.rows.get(job.base_job, -1)
        if job.base_job and base not in harness.state.live:
            job = msgspec.structs.replace(job, base_job="")
        harness.run([JobSubmitted(harness.now, job, runtime)], until=harness.now)
    harness.run()


@pytest.mark.parametrize("name", few(HEEDING, "order", "discipline", "preemption"))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(16), deadline=None)
def test_no_replica_whose_base_job_runs_waits_beside_room_for_it(name: str, seed: int) -> None:
    """Over the shipped profiles, with quotas, preemption, nodes that fail, drain and come back."""
    drawn_run(seed, builtin_profile(name))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_replica_starts_in_the_cycle_that_starts_its_base_job(name: str) -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile(name))
    harness.submit(make_job("before", base_job="", estimate=SECOND), make_job("core", estimate=SECOND))
    harness.submit(*(make_job(f"burst{i}", base_job="core", priority=i, estimate=SECOND) for i in range(3)))
    assert sorted(starts(harness.cycle())) == ["before", "burst0", "burst1", "burst2", "core"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_replica_runs_on_where_it_was_beside_a_base_job_that_gets_another_node(name: str) -> None:
    """The replica that waits for room does not take the place of the one that runs."""
    harness = Harness(make_cluster(2, 2, 2, 2), builtin_profile(name))
    harness.submit(make_job("core", 2, pods=2, estimate=SECOND))
    harness.cycle()
    harness.submit(make_job("fills", 2, estimate=SECOND))
    harness.submit(*(make_job(burst, 2, base_job="core", estimate=SECOND) for burst in ("burst", "late")))
    harness.cycle()
    before = harness.nodes_of("burst")
    harness.finish("fills")
    harness.fail(harness.nodes_of("core")[0])
    harness.cycle()
    assert sorted(harness.running()) == ["burst", "core"]
    assert harness.nodes_of("burst") == before


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_replicas_start_with_a_base_job_that_starts_again_after_its_node_has_failed(name: str) -> None:
    """One of them waits when the node fails, the other one has just come back from it."""
    profile = replace(builtin_profile(name), requeue=Requeue())
    harness = Harness(make_cluster(2, 2, 4), profile)
    harness.submit(make_job("fills", 4, estimate=SECOND), make_job("core", 1, pods=2, estimate=SECOND))
    harness.cycle()
    harness.submit(*(make_job(burst, gpus, base_job="core", estimate=SECOND) for burst, gpus in (("a", 1), ("b", 2))))
    harness.submit(make_job("c", 2, base_job="core", estimate=SECOND))
    harness.cycle()
    harness.finish("fills")
    for node in dict.fromkeys(harness.nodes_of("core")):
        harness.fail(node)
    harness.cycle()
    assert "core" in harness.running()
    assert startable_replicas(harness) == []


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_simulated_replica_runs_from_the_start_of_its_base_job(name: str) -> None:
    """It ends with its base job; it is not cancelled beside idle GPUs."""
    jobs = make_jobs(
        submit=[0, 0, 0], runtime=[100, 500, 500], gpus=[1, 1, 1], base_job=[-1, 0, 0], limit=[100, 500, 500]
    )
    run = simulate(jobs, make_cluster(8), builtin_profile(name))
    assert (run.summary["completed"], run.summary.get("cancelled", 0)) == (3, 0)
    assert run.jobs.wait.tolist() == [0, 0, 0]


def test_a_replica_of_a_late_head_starts_with_it() -> None:
    """A head that stops others to start brings its replica with it, on the rest of what they held."""
    backfill = {"policy": "backfill", "timeout_s": 10}
    harness = Harness(make_cluster(4), make_profile(discipline=backfill))
    harness.submit(make_job("fills", 2), make_job("core", 3), make_job("burst", 1, base_job="core"))
    harness.submit(make_job("passes", 2))
    harness.cycle()
    harness.finish("fills")
    assert harness.cycle(10 * SECOND).review_at == 10 * SECOND + 1
    harness.cycle(10 * SECOND + 1)
    assert {"core", "burst"} <= set(harness.running())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_replicas_of_a_base_job_that_is_rejected_are_rejected_though_nothing_else_happens(name: str) -> None:
    """The base job has reached its limit and has no more retries; the replica waits for room."""
    harness = Harness(make_cluster(2), builtin_profile(name))
    harness.submit(make_job("core", 2, limit=60 * SECOND, estimate=60 * SECOND))
    harness.cycle()
    harness.submit(make_job("burst", 2, base_job="core", estimate=SECOND))
    harness.run(until=61 * SECOND)
    assert [harness.status(job) for job in ("core", "burst")] == [JobStatus.REJECTED] * 2


def test_what_was_reserved_for_a_rejected_replica_is_free_in_the_same_cycle() -> None:
    harness = Harness(make_cluster(2), make_profile("fifo", "conservative"))
    harness.submit(make_job("base", estimate=HOUR), make_job("replica", 2, estimate=HOUR, base_job="base"))
    harness.submit(make_job("long", estimate=9 * HOUR))
    harness.cycle()
    assert harness.running() == ["base"] and len(harness.state.reserved) == 2
    harness.finish("base")
    harness.cycle()
    assert harness.status("replica") == JobStatus.REJECTED and harness.running() == ["long"]
