"""What a month's budget of GPU-hours lets start, and in which order. The reference scheduler draws the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from kant.cluster.budgets import MONTH, Budgets, ScopeUse
from kant.cluster.columns import J_STARTED
from kant.cluster.over_budget import ALL_USERS
from kant.cluster.quota_limits import QuotaLimits
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.live.answers import budgets_json
from kant.live.core import Core
from kant.live.queue_use import note_of, read_note, use_of
from kant.model.decision import Grow, Hold, OutOfBudget, Start, sentence
from kant.model.errors import StateError
from kant.model.event import BudgetsUsed, GpusBooked, JobStarted, JobSubmitted, QueuesChanged
from kant.model.tenant import Budget, Queue, QueueConfig, Quota
from kant.model.units import FOREVER, HOUR, MINUTE, SECOND
from kant.queueing.growth import Elastic
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts
from kant.testing import Harness, make_cluster, make_job, make_profile

TREE = QuotaLimits(QueueConfig((
    Queue("all", budget=Budget(hard=9000)), Queue("a", "all", budget=Budget(5000, 2500, 3000)), Queue("b", "all")
)))  # fmt: skip
TIMES = st.integers(0, 3 * MONTH)


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 4000), TIMES, TIMES), max_size=12),
    st.lists(TIMES, max_size=3, unique=True).map(sorted), TIMES,
)  # fmt: skip
@example([(1, 0, 4000, 0, MONTH)], [], 30 * HOUR)
@example([(1, 0, 4000, 0, HOUR)], [], 30 * HOUR)
@example([(2, 0, 1, 0, HOUR)], [], 30 * HOUR)
def test_what_a_budget_has_used_is_the_sum_over_the_runs_of_the_month(
    runs: list[tuple[int, int, int, int, int]], ends: list[int], at: int
) -> None:
    budgets = Budgets(0)
    budgets.restore(0, ends, {})
    spans = [(queue, user, milli, min(one, other), max(one, other)) for queue, user, milli, one, other in runs]
    steps = [(start, queue, user, milli) for queue, user, milli, start, _ in spans]
    steps += [(end, queue, user, -milli) for queue, user, milli, _, end in spans]
    for time, queue, user, milli in sorted(step for step in steps if step[0] <= at):
        budgets.changed(queue, user, milli, time)
    months = [end for end in ends if end > 0]
    while not months or months[-1] <= at:
        months.append((months[-1] if months else 0) + MONTH)
    begun = max([0, *(end for end in months if end <= at)])
    scopes = budgets.scopes(TREE, [0, 1, 2], at)
    assert (budgets.begun, budgets.end) == (begun, min(end for end in months if end > at))
    for (node, user), use in scopes.items():
        covered = [run for run in spans if (node == 0 or run[0] == node) and user in (ALL_USERS, run[1])]
        assert use.used == sum(run[2] * max(min(run[4], at) - max(run[3], begun), 0) for run in covered)
        assert use.rate == sum(run[2] for run in covered if run[3] <= at < run[4])
    over = budgets.over(TREE, [0, 1, 2], at)
    assert over.hard == {scope for scope, use in scopes.items() if 0 <= use.hard * HOUR <= use.used}
    assert over.soft == {scope for scope, use in scopes.items() if 0 <= use.soft * HOUR <= use.used}
    assert {(0, ALL_USERS), (1, ALL_USERS)} <= scopes.keys() and (0, 1) not in scopes
    change, end = budgets.next_change(TREE, [0, 1, 2], at), budgets.end
    assert change <= end or (change < FOREVER and not (over.hard or over.soft))
    last = min(change, end) - 1 if change >= 0 else end - 1
    assert budgets.over(TREE, [0, 1, 2], last)[1:] == over[1:]
    if 0 <= change <= end:
        assert budgets.over(TREE, [0, 1, 2], change)[1:] != over[1:]


def reasons(harness: Harness) -> dict[str, OutOfBudget]:
    """Why jobs wait whose budget is used up, as the plans so far have said."""
    holds = [said for plan in harness.plans for said in plan.decisions if isinstance(said, Hold)]
    return {hold.job: hold.reason for hold in holds if isinstance(hold.reason, OutOfBudget)}


@pytest.mark.parametrize("discipline", ["backfill", "strict", "best-effort", "easy", "conservative"])
def test_beyond_a_hard_budget_nothing_starts_until_the_month_ends_and_what_runs_runs_on(discipline: str) -> None:
    profile = make_profile("fifo", {"policy": discipline}, "best-fit", None)
    harness = Harness(make_cluster(4), profile)
    harness.set_queues(Queue("all", budget=Budget(2500)), Queue("a", "all"), Queue("b"))
    harness.happen(BudgetsUsed(0, (10 * HOUR, 40 * HOUR), {"a": {"zoe": 500 * HOUR}}))
    jobs = [make_job(name, queue=queue, gpus=1, submit=0, estimate=3 * HOUR)
            for name, queue in (("one", "a"), ("late", "a"), ("other", "b"))]  # fmt: skip
    harness.run([JobSubmitted(at, job, 3 * HOUR) for at, job in zip((0, 2 * HOUR, 2 * HOUR), jobs, strict=True)])
    started = {e.job: e.time for e in harness.events if isinstance(e, JobStarted)}
    assert started == {"one": 0, "late": 10 * HOUR, "other": 2 * HOUR}
    assert reasons(harness) == {"late": OutOfBudget("all", 2500, 2500, 10 * HOUR)}
    said = "queue all has used 2.5 of 2.5 GPU-hours this month, and starts no job before 0d 10:00:00"
    assert sentence(reasons(harness)["late"]) == said


def test_a_user_without_budget_stops_nobody_else_of_the_queue() -> None:
    harness = Harness(make_cluster(4), builtin_profile("kant"))
    harness.set_queues(Queue("a", budget=Budget(user_hard=1000)))
    for name, user in (("one", "ann"), ("two", "ann"), ("three", "bob")):
        harness.now = 0 if name == "one" else HOUR
        harness.submit(make_job(name, queue="a", user=user, gpus=1, submit=harness.now))
        harness.cycle()
    assert harness.running() == ["one", "three"]
    assert sentence(reasons(harness)["two"]).startswith("user ann of queue a has used 1 of 1 GPU-hours")


@pytest.mark.parametrize("profile", ["kant", "teams", "fair-share", "easy"])
@pytest.mark.parametrize("budget", [Budget(soft=1000), Budget(user_soft=1000)])
def test_beyond_a_soft_budget_jobs_go_after_all_others(profile: str, budget: Budget) -> None:
    """Also after those of lower priority that came later; and they start where nobody else wants the place."""
    harness = Harness(make_cluster(1), builtin_profile(profile))
    harness.set_queues(Queue("a", budget=budget), Queue("b"))
    if profile == "kant":  # reservations of people change who is asked, not who goes first
        booked = np.array([[0, 1, 1, 1000, 0, 0, 1]], dtype=np.int64)
        harness.happen(GpusBooked(0, "course", 90 * HOUR, 91 * HOUR, booked))
    harness.submit(make_job("first", queue="a", user="ann", gpus=1, submit=0, estimate=HOUR))
    harness.cycle(0)
    by_user = budget.user_soft > 0
    late = make_job("late", queue="a" if by_user else "b", user="bob", gpus=1, submit=MINUTE, estimate=HOUR)
    harness.now = HOUR
    harness.submit(make_job("urgent", queue="a", user="ann", gpus=1, submit=0, priority=5, estimate=HOUR), late)
    for job in ("first", "late"):
        harness.finish(job)
        harness.cycle()
    assert [event.job for event in harness.events if isinstance(event, JobStarted)] == ["first", "late", "urgent"]


@pytest.mark.parametrize("budget", [Budget(soft=50), Budget(hard=50)])
def test_a_cycle_takes_place_when_running_jobs_have_used_up_a_budget(budget: Budget) -> None:
    """By hand: one GPU uses 0.05 GPU-hours in 180 s. Then `urgent` no longer holds `late`."""
    harness = Harness(make_cluster(2), builtin_profile("kant"))
    harness.set_queues(Queue("a", budget=budget), Queue("b"))
    jobs = [
        make_job("first", queue="a", gpus=1, submit=0, priority=6, preemptible=False),
        make_job("urgent", queue="a", gpus=2, submit=0, priority=5),
        make_job("late", queue="b", gpus=1, submit=0),
    ]
    harness.run([JobSubmitted(job.submit, job, HOUR) for job in jobs], until=10 * MINUTE)
    assert {e.job: e.time for e in harness.events if isinstance(e, JobStarted)} == {"first": 0, "late": 3 * MINUTE}


def test_a_plan_that_only_says_why_a_job_waits_asks_for_no_cycle_right_after_it() -> None:
    harness = Harness(make_cluster(2), make_profile())
    harness.set_queues(Queue("a", budget=Budget(soft=10_000)))
    harness.submit(make_job("first", queue="a", preemptible=False))
    assert harness.cycle().review_at == 1
    harness.submit(make_job("wide", 2, queue="a"))
    plan = harness.cycle()
    assert [type(each) for each in plan.decisions] == [Hold] and plan.review_at == 10 * HOUR


def test_a_plan_that_only_grows_a_gang_asks_for_a_cycle_right_after_it() -> None:
    harness = Harness(make_cluster(4), make_profile("fifo", elastic=Elastic(grow_s=60)))
    harness.set_queues(Queue("a", budget=Budget(soft=10_000)))
    harness.submit(make_job("gang", pods=3, floor=1, queue="a"), make_job("ends", 2, queue="a"))
    harness.cycle()
    harness.submit(make_job("wide", 4, queue="a"))
    harness.cycle(1)
    harness.now = 60 * SECOND
    harness.finish("ends")
    plan = harness.cycle()
    assert [type(each) for each in plan.decisions] == [Grow] and plan.review_at == harness.now + 1


def test_what_cannot_have_been_used_is_refused_and_what_is_not_asked_for_is_not_kept() -> None:
    harness = Harness(make_cluster(1), builtin_profile("kant"))
    for ends, used in (((5, 5), 0), ((0,), 0), ((), -1)):
        with pytest.raises(StateError, match="ends of months do not increase"):
            harness.happen(BudgetsUsed(0, ends, {"a": {"ann": used}}))
    harness.happen(BudgetsUsed(0, (), {"a": {"ann": 1}}))
    assert harness.state.quota_usage.budgets is None and "a" not in harness.state.queues


def test_a_budget_counts_from_its_declaration_and_more_of_it_counts_at_once() -> None:
    harness = Harness(make_cluster(2), builtin_profile("kant"))
    harness.set_queues(Queue("a"))
    harness.submit(make_job("one", queue="a", gpus=1, submit=0))
    harness.cycle()
    harness.now = HOUR
    harness.set_queues(Queue("a", budget=Budget(1000)))
    harness.submit(make_job("two", queue="a", gpus=1, submit=HOUR))
    harness.now = 2 * HOUR
    harness.cycle()
    assert harness.running() == ["one"]
    for hard in (1001, 999, 1001):
        harness.set_queues(Queue("a", budget=Budget(hard)))
        usage = harness.state.quota_usage
        over = usage.over_budget(2 * HOUR)
        assert over is not None and bool(over.hard) == (hard == 999)
    harness.cycle()
    assert harness.running() == ["one", "two"]


class Clock:
    """A clock that a test sets, seconds since the Unix epoch."""

    def __init__(self, day: datetime) -> None:
        self.now = day.timestamp()

    def __call__(self) -> float:
        return self.now


def core_at(clock: Clock, queues: Sequence[Queue] = (Queue("a", budget=Budget(1000)),)) -> Core:
    core = Core(make_cluster(2), builtin_profile("kant"), zero=int(clock() * 1e6), clock=clock)
    core.settled()
    core.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
    return core


def test_a_live_month_is_that_of_the_calendar_and_goes_on_after_a_restart() -> None:
    clock = Clock(datetime(2027, 1, 30, 12))
    core = core_at(clock)
    core.happen(JobSubmitted(0, make_job("one", queue="a", user="ann", gpus=2, submit=0)))
    (start,) = core.cycle().decisions
    assert isinstance(start, Start)
    core.happen(JobStarted(core.now, "one", start.allocation))
    clock.now += 3600
    saved = read_note(note_of(use_of(core.state, core.zero, core.now)))
    assert saved is not None and saved.spent == {"a": {"ann": 2000 * HOUR}}
    saved = structs.replace(saved, spent={"a": {"ann": 2000 * HOUR, "bob": 7}})
    clock.now += 1800
    after = core_at(clock)
    after.happen(JobSubmitted(0, make_job("one", queue="a", user="ann", gpus=2, submit=0)))
    after.happen(JobStarted(0, "one", start.allocation))  # a state that is built anew says so, whenever it was
    after.state.jobs[0, J_STARTED] = core.zero - after.zero
    after.recall_use(saved)
    budgets = after.state.quota_usage.budgets
    assert budgets is not None and budgets.used(after.now) == {(0, 0): 3000 * HOUR, (0, 1): 7}
    assert budgets.used(after.now + HOUR)[0, 0] == 5000 * HOUR
    after.happen(JobSubmitted(after.now, make_job("two", queue="a", user="ann", gpus=1, submit=0)))
    after.happen(QueuesChanged(after.now, QueueConfig((Queue("a", budget=Budget(2000)),))))
    assert budgets.used(after.now)[0, 1] == 7
    for _ in range(2):
        after.attribute()
        clock.now += 600
    after.attribute()
    assert after.waits.kept(after.now)["two"] == {"gated": 1200 * 10**6}
    clock.now -= 1200
    assert budgets.end == (datetime(2027, 2, 1) - datetime.fromtimestamp(clock.now)).total_seconds() * 1e6
    later = Clock(datetime(2027, 2, 1, 0, 0, 1))
    new = core_at(later)
    new.recall_use(saved)
    assert new.state.quota_usage.budgets is not None and new.state.quota_usage.budgets.used(new.now) == {}
    plain = core_at(later, [Queue("a", quotas=(Quota(nominal=1),))])
    assert plain.state.quota_usage.budgets is None


def test_the_day_on_which_a_budget_runs_dry_is_foreseen_from_the_queue() -> None:
    """By hand: two jobs of four GPUs hold 80 and 44.4 GPU-hours; the last two run from 20:05 and 22:18:20 on."""
    harness = Harness(make_cluster(8), builtin_profile("kant"))
    harness.set_queues(Queue("vision", budget=Budget(150_000, 100_000, 500_000)), Queue("speech"))
    lasts = {"v1": 72, "s1": 40, "v2": 40, "v3": 40, "v4": 40, "s2": 40, "v5": 40}
    jobs = [make_job(name, queue="vision" if name[0] == "v" else "speech", user="ann", gpus=4, submit=0,
                     estimate=1000 * SECOND * long) for name, long in lasts.items()]  # fmt: skip
    harness.submit(*jobs)
    harness.cycle()
    assert harness.running() == ["v1", "s1"]
    forecast = forecast_starts(moment_of(harness.scheduler, PastJobs(), 0))
    hard, soft = sorted(forecast.budgets, key=lambda one: one.limit)
    assert (hard.queue, hard.user, hard.limit, hard.until, hard.jobs) == ("vision", "", "hard", MONTH, ("v5",))
    assert hard.p50 == hard.p10 == 87_800 * SECOND and soft.p50 == 65_000 * SECOND and soft.jobs == ()
    assert forecast.jobs["v5"].start.p50 == MONTH
    alone = forecast_starts(moment_of(harness.scheduler, PastJobs(), 0), "v5")
    assert alone.jobs["v5"].start.p50 == MONTH and alone.budgets == ()
    assert ScopeUse(0, 7, 1, -1).dry_at(5) == 5 - (-HOUR // 7), "the first instant at which nothing is left"
    assert [row["jobs"] for row in budgets_json(forecast)] == [[], ["v5"]]
