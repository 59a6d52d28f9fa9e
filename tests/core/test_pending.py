"""The pending queue: whatever may let a sleeping job start wakes it, and waking too much starts nobody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.test_long_lived_scheduler import DISCIPLINES, RIGHTS, among_tenants
from tests.core.test_state_machine import said
from tests.examples import examples

from kant.model.decision import Hold, Plan, Reject, Start
from kant.model.event import QueuesChanged
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.queueing import waiting as w
from kant.queueing.growth import Elastic
from kant.testing import Harness, make_cluster, make_job, make_profile

WITH_BUCKETS = DISCIPLINES[:3]


def wakes_everything(harness: Harness) -> None:
    """Before every cycle, forget what is known to be unschedulable."""
    scheduler = harness.scheduler
    decide = scheduler.cycle

    def cycle(now: int) -> Plan:
        scheduler.pending.wake_all()
        return decide(now)

    scheduler.cycle = cycle  # type: ignore[method-assign]


@pytest.mark.parametrize("rights", RIGHTS)
@given(
    seed=st.integers(0, 10**6),
    discipline=st.sampled_from(WITH_BUCKETS),
    elastic=st.sampled_from((None, None, Elastic(grow_s=100))),
)
@example(seed=53658, discipline="strict", elastic=None)  # a replica and its base job replace lost nodes
@example(seed=219963, discipline="strict", elastic=Elastic(grow_s=100))  # more may be stopped, and still not enough
@settings(max_examples=examples(6), deadline=None)
def test_waking_everything_before_every_cycle_changes_no_plan(
    rights: str, seed: int, discipline: Any, elastic: Elastic | None
) -> None:
    """Over tenants, quotas that change, preemption, elastic gangs, burst replicas, back-offs, faults and refusals.

    Nor does it change when a plan asks for another cycle.
    """
    as_it_is = among_tenants(seed, discipline, rights, lambda harness: None, elastic)
    woken = among_tenants(seed, discipline, rights, wakes_everything, elastic)
    assert told(as_it_is) == told(woken)


def told(harness: Harness) -> list[tuple[int, Any]]:
    """When each cycle was, when it asked for another one, and what it decided."""
    return [(plan.time, said(plan)) for plan in harness.plans]


def never_idle(harness: Harness) -> None:
    """Make every cycle, also where nobody waits."""
    harness.scheduler._may_be_idle = False


@pytest.mark.parametrize("rights", RIGHTS)
@given(
    seed=st.integers(0, 10**6),
    discipline=st.sampled_from(DISCIPLINES),
    elastic=st.sampled_from((None, None, Elastic(grow_s=100))),
)
@settings(max_examples=examples(4), deadline=None)
def test_a_cycle_that_is_left_out_would_have_decided_nothing(
    rights: str, seed: int, discipline: Any, elastic: Elastic | None
) -> None:
    as_it_is = among_tenants(seed, discipline, rights, lambda harness: None, elastic)
    always = among_tenants(seed, discipline, rights, never_idle, elastic)
    assert [said(plan) for plan in as_it_is.plans] == [said(plan) for plan in always.plans]


def tried(harness: Harness) -> list[str]:
    """The jobs for which the next cycle asks for a place."""
    asked: list[str] = []
    place = harness.scheduler.placer.place

    def count(shape: Any, row: int = 0) -> Any:
        asked.append(harness.state.ids[row])
        return place(shape, row)

    harness.scheduler.placer.place = count  # type: ignore[method-assign]
    harness.cycle()
    harness.scheduler.placer.place = place  # type: ignore[method-assign]
    return asked


def full_cluster(jobs: int) -> Harness:
    """Two nodes of four GPUs that one job fills, and jobs of three shapes that wait."""
    harness = Harness(make_cluster(4, 4), make_profile(discipline="best-effort"))
    harness.submit(make_job("fills", 4, pods=2))
    harness.cycle()
    for job in range(jobs):
        harness.submit(make_job(f"w{job}", 1 + job % 3))
    return harness


def test_of_many_jobs_that_cannot_start_one_of_each_shape_is_tried_once() -> None:
    harness = full_cluster(60)
    assert tried(harness) == ["w0", "w1", "w2"]
    assert tried(harness) == []
    harness.submit(make_job("more", 2))
    assert tried(harness) == []


def test_capacity_that_comes_free_wakes_what_it_may_let_start() -> None:
    harness = full_cluster(3)
    harness.cycle()
    harness.finish("fills")
    assert tried(harness) == ["w0", "w1", "w2"]
    assert harness.waiting() == []


def test_a_change_of_the_queues_alone_is_seen_by_the_next_cycle() -> None:
    """No job came, started or left: a job whose queue gives it less than it asks for is told so all the same."""

    def queues(gpus: int) -> QueueConfig:
        return QueueConfig((Queue("team", quotas=(Quota(nominal=gpus, borrowing_limit=0),)),))

    harness = Harness(make_cluster(4), make_profile(discipline="best-effort"))
    harness.happen(QueuesChanged(0, queues(4000)))
    harness.submit(make_job("first", 3, queue="team"), make_job("second", 3, queue="team"))
    harness.cycle()
    assert harness.running() == ["first"] and harness.waiting() == ["second"]
    harness.happen(QueuesChanged(harness.now, queues(3000)))
    plan = harness.cycle()
    assert [type(decision) for decision in plan.decisions] == [Hold]
    harness.happen(QueuesChanged(harness.now, queues(2000)))
    plan = harness.cycle()
    assert [(type(decision), decision.job) for decision in plan.decisions] == [(Reject, "second")]


def test_the_first_of_a_bucket_that_leaves_lets_the_next_one_be_tried() -> None:
    harness = Harness(make_cluster(4), make_profile(discipline="strict"))
    harness.submit(make_job("too large for now", 4), make_job("small", 1))
    harness.submit(make_job("runs", 1))
    harness.cycle()
    assert harness.running() == ["too large for now"]
    harness.submit(make_job("large", 4), make_job("tiny", 1))
    harness.finish("too large for now")
    assert [decision.job for decision in harness.cycle().decisions if isinstance(decision, Start)] == ["small", "runs"]
    assert harness.waiting() == ["large", "tiny"]
    harness.cancel("large")
    harness.cycle()
    assert harness.waiting() == []


def test_a_job_that_left_between_a_question_and_the_next_cycle_is_not_rejected() -> None:
    harness = Harness(make_cluster(4), make_profile(discipline="best-effort"))
    harness.submit(make_job("never fits", 64))
    harness.scheduler.begin(harness.now)  # as a question does
    harness.cancel("never fits")
    assert harness.cycle().decisions == []


JOBS = st.tuples(st.integers(-2, 2), st.floats(-1e9, 1e9), st.integers(0, 2))


@given(st.lists(JOBS, min_size=1, max_size=30), st.data())
def test_the_first_job_of_a_bucket_is_on_top_whoever_leaves(
    jobs: list[tuple[int, float, int]], data: st.DataObject
) -> None:
    entries, places = w.make_table(w.ENTRY_WIDTH, len(jobs) + 1), w.make_places(len(jobs))
    buckets, verdicts = w.make_table(w.BUCKET_WIDTH, 4), w.make_table(w.VERDICT_WIDTH, 1)
    keys, waiting = w.as_integers(np.array([key for _, key, _ in jobs])).tolist(), dict[int, tuple[int, float, int]]()
    for row in [*range(len(jobs)), *data.draw(st.permutations(range(len(jobs))))]:
        priority, _, bucket = jobs[row]
        if row in waiting:
            del waiting[row]
            w.drop(entries, places, buckets, row)
        else:
            waiting[row] = jobs[row]
            w.push_one(entries, places, buckets, verdicts, row, priority, keys[row], 0, 0, bucket + 1, False)
        for number in range(3):
            there = [(*jobs[other][:2], other) for other in waiting if jobs[other][2] == number]
            top = buckets[number + 1, w.B_TOP]
            assert (int(entries[top, w.E_ROW]) if top else None) == (min(there)[2] if there else None)


def test_all_jobs_of_the_last_bucket_are_tried_after_a_job_that_sleeps() -> None:
    harness = Harness(make_cluster(4), make_profile("fifo", "best-effort"))
    harness.submit(make_job("runs", 2))
    harness.cycle()
    harness.submit(make_job("waits", 4), make_job("one", 1), make_job("another", 1))
    harness.cycle()
    assert harness.running() == ["runs", "one", "another"]
