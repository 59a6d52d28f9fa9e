"""A job that waits until others have run for their `min_run` says so, and is expected when it comes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.insight.explanation import explain
from kant.insight.facts import ProtectedVictims, fact_sentence
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.event import JobSubmitted, QueuesChanged
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import GPU, HOUR, MINUTE, SECOND
from kant.queueing.preemption.policy import Preemption
from kant.sim.forecast_starts import forecast_starts
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue

TEN = 10 * MINUTE
minutes = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def starts(harness: Harness) -> dict[str, tuple[int | None, int | None]]:
    """P50 and P90 of every waiting job."""
    found = forecast_starts(moment_of(harness.scheduler, PastJobs(), harness.now))
    return {job: (row.start.p50, row.start.p90) for job, row in found.jobs.items()}


def protected(harness: Harness, job: str) -> list[ProtectedVictims]:
    found = explain(harness.scheduler, job, harness.now)
    return [one for one in found.facts if isinstance(one, ProtectedVictims)]


@given(minutes, st.integers(1, 4), st.booleans())
def test_a_job_is_expected_when_enough_of_those_it_may_stop_have_run_long_enough(
    begun: list[int], nodes: int, by_quota: bool
) -> None:
    nodes = min(nodes, len(begun))
    profile = make_profile(preemption=Preemption(priority=not by_quota, min_run_s=600))
    harness = Harness(make_cluster(*[8] * len(begun)), profile)
    if by_quota:
        total = 8 * len(begun)
        harness.set_queues(
            make_queue("all"), make_queue("ours", total, parent="all"), make_queue("theirs", 0, parent="all")
        )
    for number, start in enumerate(sorted(begun)):
        harness.now = start * MINUTE
        harness.submit(make_job(f"low{number}", 8, queue="theirs"))
        harness.cycle(harness.now)
    harness.now = 9 * MINUTE + 30 * SECOND
    harness.submit(make_job("high", 8, nodes, queue="ours", priority=0 if by_quota else 1))
    harness.cycle(harness.now)
    due = sorted(begun)[nodes - 1] * MINUTE + TEN
    assert starts(harness)["high"] == (due, due)
    (fact,) = protected(harness, "high")
    assert fact == ProtectedVictims("theirs", nodes, TEN, due)
    harness.cycle(due - 1)
    assert "high" not in harness.running()
    harness.cycle(due)
    assert "high" in harness.running()


@given(st.integers(0, 900), st.integers(0, 900))
def test_a_late_head_is_served_once_a_job_has_run_long_enough_that_started_as_it_failed(least: int, own: int) -> None:
    """Without the job that starts there is room for the head, if another stops that has run long enough."""
    harness = Harness(make_cluster(8), make_profile(discipline="backfill", preemption=Preemption(min_run_s=least)))
    queue = Queue("default", min_run=own * SECOND, quotas=(Quota(nominal=16 * GPU),))
    harness.happen(QueuesChanged(0, QueueConfig((queue,) if own else ())))
    times = [(0, 4, 4000), (0, 4, 100), (1, 8, 600), (2, 4, 20_000), (3, 4, 20_000)]
    jobs = [(make_job(f"j{i}", gpus, submit=at * SECOND), run) for i, (at, gpus, run) in enumerate(times)]
    harness.run(JobSubmitted(job.submit, job, run * SECOND) for job, run in jobs)
    starts = harness.first_starts()
    assert starts["j4"] == 4000 * SECOND
    assert starts["j2"] == starts["j4"] + max(least * SECOND, own * SECOND, 1)


@pytest.mark.parametrize("other", [{}, {"preemptible": False}, {"priority": 1}])
def test_a_late_head_awaits_only_a_job_that_it_may_stop(other: dict[str, Any]) -> None:
    profile = make_profile(discipline={"policy": "backfill", "keeps_priority": False}, preemption=Preemption())
    harness = Harness(ClusterSpec("two", (Node("a", 8, "A"), Node("b", 4, "B"))), profile)
    harness.submit(make_job("first", 4, models=("A",)), make_job("second", 4, models=("A",)))
    harness.cycle(0)
    harness.submit(make_job("head", 8, models=("A",)), make_job("behind", 4, models=("A",)))
    harness.finish("second")
    harness.cycle(1)
    harness.now = 2 * HOUR
    harness.submit(make_job("starts", 4, models=("A",), **other), make_job("elsewhere", 4, models=("B",)))
    harness.finish("first")
    plan = harness.cycle()
    assert harness.running() == ["behind", "starts", "elsewhere"]
    assert plan.review_at == (-1 if other else harness.now + 300 * SECOND)


def test_the_sentence_names_min_run_and_victims_are_counted_on_once() -> None:
    harness = Harness(make_cluster(8), make_profile(preemption=Preemption(min_run_s=600)))
    harness.submit(make_job("low", 8))
    harness.cycle(0)
    harness.submit(make_job("first", 8, priority=1), make_job("second", 8, priority=1))
    harness.cycle(SECOND)
    assert starts(harness) == {"first": (TEN, TEN), "second": (None, None)}
    (fact,) = protected(harness, "first")
    assert fact_sentence(fact) == (
        "a running job of queue default may be stopped for it at 0d 00:10:00: it runs for 10m before that (min_run)"
    )


def test_nobody_waits_for_min_run_who_may_stop_nobody_or_has_room_before() -> None:
    harness = Harness(make_cluster(8), make_profile(preemption=Preemption(min_run_s=600)))
    harness.submit(make_job("low", 8, estimate=MINUTE))
    harness.cycle(0)
    harness.submit(
        make_job("equal", 8), make_job("high", 8, priority=1), make_job("meek", 8, priority=1, preempts=False)
    )
    harness.cycle(SECOND)
    assert not protected(harness, "equal") and not protected(harness, "meek")
    assert starts(harness)["high"] == (MINUTE, MINUTE)
