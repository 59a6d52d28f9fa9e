"""Orders that a job falls behind in as it runs on, and late heads that go by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_state_machine import said
from tests.examples import examples

from kant.cluster import columns as c
from kant.model.decision import Plan, Preempt, Start
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.status import JobStatus
from kant.model.units import DAY, FOREVER, HOUR, MINUTE, SECOND
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.estimates import Estimates
from kant.queueing.orders.stretch import Stretch
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import builtin_profile
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import Harness, check_policy, make_cluster, make_job, make_profile
from kant.testing.strategies import clusters
from kant.workload.generate import generate


@st.composite
def orders(draw: st.DrawFn) -> Stretch:
    """Any fields that go together."""
    least, large, most = sorted(draw(st.lists(st.integers(1, 400), min_size=3, max_size=3)))
    return Stretch(
        factor=draw(st.integers(1, 40)),
        probability=draw(st.sampled_from((0, 50, 90))),
        large_gpus=draw(st.sampled_from((0, 8))),
        large_factor=draw(st.integers(0, 10)),
        large_least_h=draw(st.sampled_from((0, least))),
        large_most_h=draw(st.sampled_from((0, large))),
        most_h=most,
    )


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """Some running jobs, half an hour to some days old."""
    table = np.zeros((draw(st.integers(1, 5)), c.LEARNED_WIDTH), dtype=np.int64)
    for row in table:
        row[c.J_SUBMIT] = draw(st.integers(0, 100)) * HOUR + draw(st.integers(0, 1))
        row[c.J_MILLI] = draw(st.integers(1, 16)) * 1000
        row[c.J_STATUS] = JobStatus.RUNNING
        row[c.J_ATTAINED] = draw(st.integers(0, 20)) * HOUR // 2
        row[c.J_SINCE] = 200 * HOUR - draw(st.integers(0, 20)) * HOUR // 2
        row[c.J_P50] = draw(st.sampled_from((-1, 1, MINUTE, HOUR, 30 * HOUR, FOREVER)))
        row[c.J_P90] = 2 * row[c.J_P50] if 0 <= row[c.J_P50] < FOREVER else row[c.J_P50]
    return table


@settings(deadline=None)
@given(order=orders(), table=tables(), key=st.integers(-10, 600), odd=st.integers(-1, 1))
def test_when_a_job_falls_behind_is_when_its_key_passes(order: Stretch, table: np.ndarray, key: int, odd: int) -> None:
    now, rows, line = 200 * HOUR, np.arange(len(table)), key * HOUR + odd
    found = order.falls_behind(table, rows, line, now)
    for row in rows.tolist():
        one = np.array([row])
        ages = [now, *(now + step * HOUR // 2 for step in range(1, 900))]
        behind = [time for time in ages if int(order.keys(table, one, time)[0]) > line]
        assert found[row] == (behind[0] if behind else FOREVER)


@settings(deadline=None)
@given(order=orders(), table=tables(), hours=st.integers(0, 10**5))
def test_a_job_is_put_back_by_no_more_than_the_bound(order: Stretch, table: np.ndarray, hours: int) -> None:
    rows = np.arange(len(table))
    added = order.keys(table, rows, (200 + hours) * HOUR) - table[:, c.J_SUBMIT]
    assert (added >= 0).all() and (added <= order.most_h * HOUR).all()
    large = added[(table[:, c.J_MILLI] >= 8000) & (order.large_gpus > 0)]
    assert (large >= order.large_least_h * HOUR).all()
    assert (large <= (order.large_most_h or order.most_h) * HOUR).all()


@pytest.mark.parametrize("fields", [{"large_most_h": 9, "most_h": 8}, {"large_least_h": 9, "large_most_h": 8}])
def test_bounds_that_contradict_each_other_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at most"):
        Stretch(large_gpus=8, **fields)  # type: ignore[arg-type]


def preempted(plan: Plan) -> list[tuple[str, str]]:
    return [(decision.job, decision.by) for decision in plan.decisions if isinstance(decision, Preempt)]


def started(plan: Plan) -> list[str]:
    return [decision.job for decision in plan.decisions if isinstance(decision, Start)]


def at(harness: Harness, hours: float, *jobs: Job) -> Plan:
    """Jobs come so many hours after the beginning, and a cycle follows."""
    harness.now = round(hours * HOUR)
    harness.submit(*jobs)
    return harness.cycle(harness.now)


def test_a_late_head_stops_who_has_run_on_although_it_was_there_before() -> None:
    harness = Harness(make_cluster(8, 8), make_profile(Stretch(factor=10), Backfill(timeout_s=3600)))
    at(harness, 0, make_job("old", 8), make_job("new", 8))
    assert at(harness, 0.5, make_job("head", 8, pods=2)).review_at == 3 * HOUR // 2
    assert preempted(at(harness, 1.5)) == [("old", "head"), ("new", "head")]
    assert harness.running() == ["head"]


def test_a_cycle_is_asked_for_when_somebody_falls_behind_and_not_before() -> None:
    harness = Harness(make_cluster(8), make_profile(Stretch(factor=1), Backfill(timeout_s=60)))
    at(harness, 0, make_job("runs", 8))
    plan = at(harness, 3, make_job("head", 8))
    assert plan.review_at == 3 * HOUR + MINUTE
    assert preempted(at(harness, 3 + 1 / 60)) == [("runs", "head")]  # its 2 whole hours count twice: 4 are more than 3
    harness = Harness(make_cluster(8), make_profile(Stretch(factor=1), Backfill(timeout_s=60)))
    at(harness, 0, make_job("runs", 8))
    at(harness, 4 - 1 / 12, make_job("early", 8))  # 4 are more than that, too
    assert preempted(at(harness, 4 - 1 / 20)) == [("runs", "early")]
    harness = Harness(make_cluster(8), make_profile(Stretch(factor=1), Backfill(timeout_s=60)))
    at(harness, 0, make_job("runs", 8))
    at(harness, 7, make_job("first", 8), make_job("second", 4))
    plan = at(harness, 7 + 1 / 60)  # 8 are more than 7
    assert preempted(plan) == [("runs", "first")]
    plan = at(harness, 7.5)
    assert preempted(plan) == [] and plan.review_at == round((7 + 1 / 60) * HOUR) + HOUR
    assert preempted(at(harness, 8.1)) == [("first", "second")]  # by now "first" has run for an hour


def test_large_jobs_have_a_head_of_their_own() -> None:
    policy = Backfill(timeout_s=3600, large_gpus=16, small_timeout_s=4 * 3600)
    harness = Harness(make_cluster(8, 8), make_profile("fifo", policy))
    at(harness, 0, make_job("runs", 1), make_job("there", 2))
    at(harness, 0.1, make_job("first", 8), make_job("large", 8, pods=2), make_job("small", 8))
    assert harness.running() == ["runs", "there", "first"]
    at(harness, 0.2, make_job("passes", 4))
    for job in ("runs", "there", "first"):
        harness.finish(job)
    assert started(at(harness, 0.3)) == ["small"]
    assert preempted(at(harness, 1.05)) == []
    assert sorted(preempted(at(harness, 1.1))) == [("passes", "large"), ("small", "large")]


@pytest.mark.parametrize("move", [True, False])
def test_victims_of_a_late_head_move_where_they_fit_unless_the_profile_says_no(move: bool) -> None:
    by = Preemption(move_victims=move)
    harness = Harness(make_cluster(8, 8), make_profile("fifo", Backfill(timeout_s=3600), preemption=by))
    at(harness, 0, make_job("runs", 6), make_job("there", 6))
    at(harness, 0.1, make_job("head", 8))
    at(harness, 0.2, make_job("passes", 2))
    harness.finish("runs")
    plan = at(harness, 1.1)
    assert preempted(plan) == [("passes", "head")]
    assert started(plan) == (["head", "passes"] if move else ["head"])
    assert [d.moved for d in plan.decisions if isinstance(d, Preempt)] == [move]


@pytest.mark.parametrize("large_gpus", [0, 16])
def test_a_small_head_has_the_longer_patience(large_gpus: int) -> None:
    policy = Backfill(timeout_s=3600, large_gpus=large_gpus, small_timeout_s=4 * 3600)
    harness = Harness(make_cluster(8), make_profile("fifo", policy))
    harness.submit(make_job("runs", 4))
    harness.cycle(0)
    harness.submit(make_job("head", 8), make_job("passes", 4))
    harness.cycle(SECOND)
    harness.finish("runs")
    first = HOUR if not large_gpus else 4 * HOUR
    assert harness.cycle(HOUR // 2).review_at == first
    assert preempted(harness.cycle(first)) == [("passes", "head")]


@st.composite
def streams(draw: st.DrawFn) -> list[JobSubmitted]:
    """Up to 24 gangs of one group that run for minutes or days, of few owners, so that something is learned."""
    found, now = [], 0
    for i in range(draw(st.integers(4, 24))):
        now += draw(st.integers(0, 6)) * HOUR
        pods, gpus = draw(st.sampled_from(((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 1), (4, 8))))
        user, priority = draw(st.sampled_from("ab")), draw(st.sampled_from((0, 0, 0, 1)))
        job = Job(f"j{i}", now, (PodGroup(pods, Demand(gpus)),), user=user, priority=priority,
                  preemptible=draw(st.integers(0, 5)) > 0)  # fmt: skip
        found.append(JobSubmitted(now, job, draw(st.sampled_from((MINUTE, HOUR, 5 * HOUR, 2 * DAY, 9 * DAY)))))
    return found


DISCIPLINES = (
    Backfill(timeout_s=3600), Backfill(timeout_s=0, large_gpus=8, small_timeout_s=7200),
    Backfill(timeout_s=1800, large_gpus=16, small_timeout_s=86_400),
)  # fmt: skip
RIGHTS = (None, Preemption(), Preemption(priority=False, reclaim="off", min_run_s=3600))


def run(spec: Any, coming: list[JobSubmitted], profile: Any, forgetful: bool) -> Harness:
    """A run; a forgetful one remembers nothing from cycle to cycle, and has a cycle every quarter of an hour."""
    harness = Harness(spec, profile)
    decide = harness.scheduler.cycle

    def cycle(now: int) -> Plan:
        harness.scheduler.pending.wake_all()
        plan = decide(now)
        soon = now + 15 * MINUTE
        if harness.state.pending and (plan.review_at < 0 or plan.review_at > soon):
            plan.review_at = soon
        return plan

    if forgetful:
        harness.scheduler.cycle = cycle  # type: ignore[method-assign]
    harness.run(coming)
    return harness


@pytest.mark.long
@given(
    spec=clusters(), coming=streams(), order=orders(), discipline=st.sampled_from(DISCIPLINES),
    rights=st.sampled_from(RIGHTS),
)  # fmt: skip
@settings(max_examples=examples(25), deadline=None)
def test_nothing_is_missed_by_looking_only_when_something_may_have_changed(
    spec: Any, coming: list[JobSubmitted], order: Stretch, discipline: Backfill, rights: Preemption | None
) -> None:
    profile = make_profile(order, discipline, preemption=rights, estimates=Estimates(source="learned"))
    as_it_is, woken = run(spec, coming, profile, False), run(spec, coming, profile, True)
    plans = [[(plan.time, said(plan)[1]) for plan in harness.plans if said(plan)[1]] for harness in (as_it_is, woken)]
    assert plans[0] == plans[1]
    assert not as_it_is.state.live  # nobody waits for ever


@given(spec=clusters(), coming=streams(), order=orders(), discipline=st.sampled_from(DISCIPLINES))
@settings(max_examples=examples(25), deadline=None)
def test_who_was_stopped_stops_in_turn_only_who_has_doubled(
    spec: Any, coming: list[JobSubmitted], order: Stretch, discipline: Backfill
) -> None:
    """Each eviction is of somebody behind, as the keys are then; so a pair that changes places has doubled between."""
    harness = Harness(spec, make_profile(order, discipline, estimates=Estimates(source="learned")))

    def look(plan: Plan) -> None:
        state = harness.state
        for job, by in preempted(plan):
            rows = np.array([state.rows[job], state.rows[by]])
            victim, head = order.keys(state.jobs, rows, plan.time).tolist()
            priority, own = state.jobs[rows, c.J_PRIORITY].tolist()
            assert priority < own or (priority == own and victim > head)

    harness.before_carrying_out = look
    harness.run(coming)


@pytest.mark.long
def test_the_order_is_a_policy() -> None:
    check_policy(Stretch())


@pytest.mark.long
def test_who_comes_first_is_told_that_it_waits_at_once_so_that_a_replay_says_the_same(tmp_path: Path) -> None:
    jobs = generate("helios-venus", gpus=256, load=0.9, days=7, seed=1)
    with (tmp_path / "journal.jsonl").open("wb") as out:
        hooks = RunHooks(journal=lambda line: out.write(line))
        simulate(jobs, make_cluster(*[8] * 32), builtin_profile("kant-stretch"), hooks=hooks)
    assert replay(tmp_path / "journal.jsonl").equal
