"""Rounds of the discipline `shockwave`: when it stops whom, what stays idle, and what queues get of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.small_runs import gangs, uniform
from tests.examples import examples

from kant.model.decision import Plan, Preempt, Start
from kant.model.event import JobSubmitted, NodeSetChanged
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR, MINUTE, SECOND
from kant.queueing.disciplines.shockwave import Shockwave
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.workload.workload import make_workload

ROUND = 2 * MINUTE


def cluster(gpus: int) -> ClusterSpec:
    return ClusterSpec("test", (Node("n0", gpus),))


@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(0, 6)), min_size=2, max_size=10),
    gpus=st.integers(4, 6),
)
@settings(max_examples=examples(30))
def test_jobs_stop_at_the_borders_of_rounds_and_only_for_others(lengths: list[tuple[int, int, int]], gpus: int) -> None:
    """And no plan leaves idle what one of the waiting jobs could have."""
    harness = Harness(cluster(gpus), make_profile("fifo", Shockwave()))
    plans: list[Plan] = []
    harness.before_carrying_out = plans.append
    now = 0
    coming = []
    for i, (minutes, each, gap) in enumerate(lengths):
        now += gap * 50 * SECOND
        job = Job(f"j{i}", now, (PodGroup(1, Demand(each)),), estimate=minutes * MINUTE)
        coming.append(JobSubmitted(now, job, minutes * MINUTE))
    harness.run(coming)
    stopped = 0
    for plan in plans:
        preempted = [decision for decision in plan.decisions if isinstance(decision, Preempt)]
        started = [decision for decision in plan.decisions if isinstance(decision, Start)]
        stopped += len(preempted)
        assert not preempted or (plan.time % ROUND == 0 and started)
        assert not {decision.job for decision in preempted} & {decision.job for decision in started}
    assert not harness.state.pending and not harness.state.running


def test_a_long_queue_of_short_jobs_does_not_wait_for_a_long_one() -> None:
    """One GPU, a job of ten hours, then short ones: under rounds these are done within the hour, and it still ends."""
    runtime = np.array([600, *[10] * 6]) * MINUTE
    jobs = make_workload("w", np.arange(7) * MINUTE, runtime, np.ones(7, dtype=np.int64))
    ends = {}
    for name in ("fifo", "shockwave"):
        found = simulate(jobs, cluster(1), builtin_profile(name))
        assert found.summary["completed"] == 7
        ends[name] = np.sort(found.jobs.end)
    assert ends["shockwave"][5] < ends["fifo"][0]
    assert ends["shockwave"][6] <= ends["fifo"][6] + 30 * MINUTE


def test_queues_share_by_their_number_and_not_by_that_of_their_jobs() -> None:
    """One job of one queue beside nine of another on two GPUs: as a tenant its queue has half of them."""
    queue = np.array([0, *[1] * 9])
    jobs = make_workload(
        "w", np.zeros(10, dtype=np.int64), np.full(10, 2 * 60 * MINUTE), np.ones(10, dtype=np.int64),
        queue=queue, queues=("one", "many"),
    )  # fmt: skip
    alone = {}
    for name in ("shockwave", "shockwave-queues"):
        found = simulate(jobs, cluster(2), builtin_profile(name))
        alone[name] = int(found.jobs.end[0])
    assert alone["shockwave-queues"] < alone["shockwave"]
    assert alone["shockwave-queues"] <= 3 * 60 * MINUTE


@pytest.mark.parametrize("seed", [1, 2])
def test_gangs_of_all_sizes_end_and_the_same_run_decides_the_same(seed: int) -> None:
    first, second = (simulate(gangs(seed), uniform(), builtin_profile("shockwave")) for _ in range(2))
    assert first.summary["completed"] == 60
    assert first.summary["digest"] == second.summary["digest"]


def test_a_job_that_is_stopped_for_another_moves_to_what_is_left() -> None:
    """Of three nodes of one GPU, the round stops the job on the first for one that can run only there. The third job
    of the round finds no place, so the second node stays free."""
    harness = Harness(make_cluster(1, 1, 1), make_profile("fifo", Shockwave()))
    for name, node in (("first", "n0"), ("last", "n2")):
        harness.happen(NodeSetChanged(0, name, (node,)))
    harness.submit(make_job("fixed", preemptible=False, node_set="last"), make_job("moves", estimate=17 * HOUR))
    harness.cycle()
    harness.submit(*[make_job(name, node_set=name, estimate=17 * HOUR) for name in ("first", "last")])
    harness.cycle()
    plan = harness.cycle(ROUND)
    assert [(each.job, each.moved) for each in plan.decisions if isinstance(each, Preempt)] == [("moves", True)]
    assert harness.nodes_of("first") == ["n0"] and harness.nodes_of("moves") == ["n1"]
    assert sorted(harness.running()) == ["first", "fixed", "moves"]


def test_a_job_that_reaches_its_limit_at_a_round_ends_there() -> None:
    harness = Harness(cluster(1), make_profile("fifo", Shockwave()))
    harness.submit(make_job("ends", limit=ROUND, estimate=HOUR), make_job("next", estimate=HOUR))
    harness.cycle()
    harness.cycle(ROUND)
    assert harness.running() == ["next"]
