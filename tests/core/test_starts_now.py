"""Starts now if: what is named suffices, nothing that does is cheaper, and where nothing is named nothing does."""

from __future__ import annotations

from itertools import combinations

import pytest
from tests.examples import examples

from kant.cluster.columns import J_PREEMPTIBLE
from kant.insight.diagnosis import Diagnosis
from kant.insight.explanation import explain
from kant.insight.moment import freeze, thaw
from kant.insight.starts_now import NoChange, Raise, StartsNow, Stopped, change_sentence, starts_now
from kant.model.event import JobPreempted, NodeChanged
from kant.model.status import NodeStatus
from kant.model.units import GPU, HOUR, SECOND
from kant.queueing.preemption.shrinking import lost_work
from kant.scheduler.cycle import Scheduler
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator


def changes(harness: Harness, job: str) -> tuple[StartsNow, ...] | NoChange:
    diagnosis = Diagnosis(harness.scheduler, harness.now)
    return starts_now(diagnosis, diagnosis.row(job))


def lets_start(harness: Harness, job: str, stopped: tuple[str, ...] = (), node: str = "") -> bool:
    """Whether the job lacks nothing on a copy of the state in which that has happened."""
    state = thaw(freeze(harness.state))
    for name in stopped:
        state.apply(JobPreempted(harness.now, name))
    if node:
        state.apply(NodeChanged(harness.now, node, NodeStatus.IN_SERVICE))
    diagnosis = Diagnosis(Scheduler(state, harness.profile), harness.now)
    return diagnosis.missing(state.rows[job])[0] is None


def cheapest(harness: Harness, job: str) -> int | None:
    """The least price of a set of jobs without which this one starts, by trying all of them."""
    state, cycle = harness.state, Diagnosis(harness.scheduler, harness.now).cycle
    may = [row for row in state.running if state.jobs[row, J_PREEMPTIBLE]]
    prices = [
        sum(lost_work(cycle, row) for row in rows)
        for count in range(1, len(may) + 1)
        for rows in combinations(may, count)
        if lets_start(harness, job, tuple(state.ids[row] for row in rows))
    ]
    return min(prices, default=None)


@pytest.mark.parametrize("seed", range(examples(48)))
def test_on_small_clusters_no_other_set_of_jobs_is_cheaper_and_each_that_is_named_suffices(seed: int) -> None:
    draw = generator(seed)
    harness = Harness(make_cluster(4, 4, 8), make_profile("fifo", "best-effort"), seed=seed)
    if seed % 2:
        harness.set_queues(make_queue("a", int(draw.integers(4, 10))), make_queue("b", int(draw.integers(4, 10))))
    for i in range(14):
        harness.now += int(draw.integers(1, 3000)) * SECOND
        gpus, pods = int(draw.integers(1, 5)), int(draw.integers(1, 3))
        checkpoint = int(draw.choice([-1, 600])) * SECOND if draw.integers(2) else -1
        queue, may = "ab"[int(draw.integers(2))] if seed % 2 else "default", bool(draw.integers(4))
        harness.submit(make_job(f"j{i}", gpus, pods, queue=queue, preemptible=may, checkpoint=checkpoint))
        harness.cycle()
    named = proven = 0
    for job in harness.waiting():
        found, least = changes(harness, job), cheapest(harness, job)
        if isinstance(found, NoChange):
            assert least is None
            proven += 1
            continue
        alone = [change for change in found if change.stopped and not change.quotas and not change.nodes]
        assert (least is None) == (not alone)
        for change in alone:
            names = tuple(one.job for one in change.stopped)
            assert lets_start(harness, job, names)
            assert change.price == least == sum(one.price for one in change.stopped)
            assert change.bound <= least and change.is_cheapest
            named += 1
    assert named + proven > 0
    harness.state.check()


def test_with_many_jobs_the_bound_is_below_what_is_named() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "best-effort"))
    for i in range(16):
        harness.submit(make_job(f"s{i}", 1, checkpoint=SECOND if i % 2 else -1))
    harness.cycle(0)
    harness.now = HOUR
    harness.submit(make_job("large", 8))
    harness.cycle()
    found = changes(harness, "large")
    assert not isinstance(found, NoChange)
    (change,) = found
    assert lets_start(harness, "large", tuple(one.job for one in change.stopped))
    assert (change.price, change.bound) == (4 * 3600 * GPU, 0), "who saves its work each second lies on both nodes"
    assert change_sentence(change).endswith("stop: 4 GPU-hours lost (no set loses less than 0 GPU-hours)")


def test_a_job_that_fits_elsewhere_moves() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "best-effort", "worst-fit"))
    harness.submit(make_job("left", 3), make_job("right", 4))
    harness.cycle(0)
    harness.submit(make_job("whole", 8))
    harness.cycle(HOUR)
    (change,) = changes(harness, "whole")  # type: ignore[misc]
    assert change.stopped == (Stopped("left", "default", 3 * 3600 * GPU, moves=True),)
    assert change_sentence(change) == "job left moves: 3 GPU-hours lost (proven the cheapest)"


def test_a_quota_that_is_raised_by_what_is_missing_and_a_node_that_returns() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "best-effort"))
    harness.set_queues(make_queue("a", 6), make_queue("b", 16))
    harness.submit(make_job("runs", 4, queue="a", preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("more", 4, queue="a"))
    harness.cycle(SECOND)
    assert changes(harness, "more") == (StartsNow(quotas=(Raise("a", "", "gpu", 2 * GPU, "quota"),)),)
    assert change_sentence(changes(harness, "more")[0]) == "the quota of queue a is raised by 2 GPUs"  # type: ignore[index]
    node = harness.state.spec.nodes[1].name
    harness.cordon(node)
    harness.submit(make_job("wide", 8, queue="b"))
    harness.cycle(2 * SECOND)
    assert changes(harness, "wide") == (StartsNow(nodes=(node,)),)
    assert lets_start(harness, "wide", node=node)


def test_where_nobody_may_be_stopped_it_is_proven_that_nothing_helps() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "best-effort"))
    harness.submit(make_job("stays", 5, preemptible=False), make_job("may", 2))
    harness.cycle(0)
    harness.submit(make_job("four", 4), make_job("ten", 10), make_job("three", 3))
    harness.cycle(HOUR)
    assert changes(harness, "four") == NoChange(
        "proven: even if all preemptible jobs stop, it has no place now: 1 running job that may not be stopped "
        "holds what it needs"
    )
    stop = StartsNow((Stopped("may", "default", 2 * 3600 * GPU, False),), price=7_200_000, bound=7_200_000)
    assert explain(harness.scheduler, "three", HOUR).starts_now == (stop,)
    assert change_sentence(stop) == "job may stops: 2 GPU-hours lost (proven the cheapest)"
