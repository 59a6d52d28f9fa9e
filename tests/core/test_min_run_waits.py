"""A job that waits until others have run for their `min_run` says so, and is expected when it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kant.insight.explanation import explain
from kant.insight.facts import ProtectedVictims, fact_sentence
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.units import MINUTE, SECOND
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
