"""`most` guards large jobs from small ones: where it forbids to preempt, the answers say so, and name no other time."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.insight.explanation import Explanation, explain
from kant.insight.facts import ProtectedVictims, VictimsTooLarge, fact_sentence
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.insight.suggestions import LargerMost, suggestion_sentence
from kant.model.decision import Preempt, Start
from kant.model.units import SECOND
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts
from kant.testing import Harness, make_cluster, make_job, make_profile


def answers(found: Explanation, kind: type) -> list[object]:
    return [one for one in (*found.facts, *found.suggestions) if isinstance(one, kind)]


def one_against_eight(most: float | None = None) -> Harness:
    """A preemptible job of eight GPUs runs under the default profile, and one of a GPU and priority 1000 waits."""
    profile = builtin_profile("kant")
    if most is not None:
        profile = make_profile("fifo", Backfill(), "kant", Preemption(most=most))
    harness = Harness(make_cluster(8), profile)
    harness.submit(make_job("big", 8))
    harness.cycle(0)
    harness.now = SECOND
    harness.submit(make_job("urgent", priority=1000))
    return harness


def test_an_urgent_small_job_is_told_at_once_that_most_forbids_and_what_would_help() -> None:
    harness = one_against_eight()
    plan = harness.cycle(SECOND)
    assert plan.review_at in (-1, 3601 * SECOND), "no cycle is asked for when `big` has run for its minimum"
    found = explain(harness.scheduler, "urgent", SECOND)
    assert not answers(found, ProtectedVictims)
    assert answers(found, VictimsTooLarge) == [VictimsTooLarge("big", 1, 8000, 1000, 4.0)]
    assert answers(found, LargerMost) == [LargerMost(8, "big", 1, 300 * SECOND)]
    (fact,) = (fact_sentence(one) for one in found.facts if isinstance(one, VictimsTooLarge))
    assert fact == (
        "job big could make room, but holds 8 GPUs: [preemption] most = 4 allows 4 GPUs for this one of 1 GPU"
    )
    (help_,) = (suggestion_sentence(one) for one in found.suggestions if isinstance(one, LargerMost))
    assert help_ == "[preemption] most = 8 in the profile: job big stops for it from 0d 00:05:00 on"
    assert forecast_starts(moment_of(harness.scheduler, PastJobs(), SECOND)).jobs["urgent"].start.p50 is None
    assert not [d for d in harness.cycle(300 * SECOND).decisions if isinstance(d, Preempt)]


def test_with_the_most_that_is_named_it_takes_the_place() -> None:
    harness = one_against_eight(most=8)
    plan = harness.cycle(SECOND)
    assert plan.review_at == 300 * SECOND
    (fact,) = answers(explain(harness.scheduler, "urgent", SECOND), ProtectedVictims)
    assert isinstance(fact, ProtectedVictims) and fact.at == 300 * SECOND
    plan = harness.cycle(300 * SECOND)
    assert [d.job for d in plan.decisions if isinstance(d, Start)] == ["urgent"]


def test_a_job_without_gpus_is_not_told_to_raise_most() -> None:
    harness = Harness(make_cluster(8, cpu=8000), builtin_profile("kant"))
    harness.submit(make_job("big", 8, cpu=8000))
    harness.cycle(0)
    harness.now = SECOND
    harness.submit(make_job("urgent", 0, cpu=1000, priority=1000))
    harness.cycle(SECOND)
    found = explain(harness.scheduler, "urgent", SECOND)
    assert answers(found, VictimsTooLarge) and not answers(found, LargerMost) and not answers(found, ProtectedVictims)


SIZES = st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, 200)), min_size=1, max_size=6)


@given(SIZES, st.sampled_from((1, 2, 4)), st.integers(1, 2), st.sampled_from((0.0, 0.5, 1.0, 2.0, 4.0)), st.booleans())
@example([(8, 0)], 1, 1, 4.0, False)
@example([(8, 0), (2, 100)], 2, 1, 1.0, False)
@settings(max_examples=examples(40), deadline=None)
def test_no_answer_names_a_time_that_then_passes(
    running: list[tuple[int, int]], gpus: int, pods: int, most: float, backfill: bool
) -> None:
    """At the time that is named the job starts; with the `most` that is named too; and nobody looks in vain."""

    def harness_with(most: float) -> Harness:
        rights = Preemption(most=most)
        profile = make_profile(discipline=Backfill() if backfill else "best-effort", preemption=rights)
        harness = Harness(make_cluster(*[size for size, _ in running]), profile)
        for i, (size, start) in enumerate(sorted(running, key=lambda one: one[1])):
            harness.now = start * SECOND
            harness.submit(make_job(f"low{i}", size))
            harness.cycle()
        harness.now = 250 * SECOND
        harness.submit(make_job("urgent", gpus, pods, priority=9))
        harness.cycle()
        return harness

    harness = harness_with(most)
    if "urgent" not in harness.waiting():
        return  # it has a place, or never has
    found = explain(harness.scheduler, "urgent", harness.now)
    times = [one.at for one in found.facts if isinstance(one, ProtectedVictims)]
    helps = [one for one in found.suggestions if isinstance(one, LargerMost)]
    assert bool(answers(found, VictimsTooLarge)) == bool(helps) and not (times and helps)
    for plan in harness.plans[-1:]:
        assert bool(times) == (0 <= plan.review_at <= 500 * SECOND), "it is looked at again when it may start"
    for at in times:
        assert "urgent" not in harness.running()
        harness.cycle(at - 1)
        harness.cycle(at)
        assert "urgent" in harness.running()
    for one in helps:
        assert one.most > most
        other = harness_with(one.most)
        if one.at >= 0:
            other.cycle(one.at)
        assert "urgent" in other.running()
        less = harness_with(one.most - 1)
        if one.at >= 0:
            less.cycle(500 * SECOND)
        assert "urgent" not in less.running()
