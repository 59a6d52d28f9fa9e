"""Forecasts of starts: what then happens, wherever it can be known, and quantiles of it where it cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.profiles import few

from kant.cluster.columns import J_FIRST_START
from kant.insight.expected_start import Basis, ExpectedStart, StartForecast, basis_sentence
from kant.insight.moment import Moment, moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.units import DAY, HOUR, MINUTE, SECOND, count_from
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, builtin_texts
from kant.sim.forecast_starts import forecast_starts
from kant.sim.options import read_options
from kant.sim.remaining_work import work_of
from kant.sim.run import RunHooks, simulate
from kant.testing import Harness, make_cluster, make_job, make_jobs, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate
from kant.workload.tenants_draft import proportional
from kant.workload.workload import Workload

RUNNING = [name for name in builtin_texts() if not read_options(builtin_profile(name).simulation, name).static]
PROFILES = few(RUNNING, "order", "discipline", "preemption", "estimates", "simulation")


@pytest.fixture(autouse=True)
def no_dates() -> None:
    """Sentences show times of the run, whoever was here before."""
    count_from(0)


def forecast(harness: Harness, only: str = "", past: PastJobs | None = None) -> StartForecast:
    return forecast_starts(moment_of(harness.scheduler, past or PastJobs(), harness.now), only)


def expected(harness: Harness, job: str) -> ExpectedStart:
    return forecast(harness, job).jobs[job].start


def rests_on(harness: Harness, job: str) -> Basis:
    basis = expected(harness, job).basis
    assert basis is not None
    return basis


def burst() -> Workload:
    """Sixty jobs for 32 GPUs, that come within hours and run for days."""
    jobs = generate("helios-venus", gpus=32, load=1.4, days=6, tenants=3, seed=3)
    jobs = jobs.take(jobs.total_gpus <= 24).take(np.arange(60))
    return dataclasses.replace(jobs, submit=jobs.submit // 20)


BURST = burst()


def first_moment(at: int) -> tuple[list[tuple[Scheduler, Moment]], Callable[[Scheduler], Callable[[int], object]]]:
    """The scheduler of a run with its first moment from a time on, and the observer that finds them."""
    found: list[tuple[Scheduler, Moment]] = []

    def observer(scheduler: Scheduler) -> Callable[[int], object]:
        def look(now: int) -> None:
            if now >= at and not found:
                found.append((scheduler, moment_of(scheduler, PastJobs(), now)))

        return look

    return found, observer


@pytest.mark.parametrize("name", PROFILES)
def test_where_all_is_known_every_job_starts_as_forecast_under_every_built_in_profile(name: str) -> None:
    """Preemption, reclaim, time-outs, backfill, levels and resume costs: whatever the profile does."""
    profile, last = builtin_profile(name), int(BURST.submit[-1])
    found, observer = first_moment(last)
    queues = proportional(BURST, 32) if profile.discipline.quotas else None
    simulate(BURST, read_cluster("4x8"), profile, hooks=RunHooks(observer=observer), queue_config=queues)
    scheduler, moment = found[0]
    told, state = forecast_starts(moment), scheduler.state
    assert told.futures == 1 and len(told.jobs) > 4
    for job, row in told.jobs.items():
        start = int(state.jobs[state.rows[job], J_FIRST_START])
        if start >= moment.now:  # the others wait to go on
            assert row.start.p50 == row.start.p90 == start, job


def elastic_runs(seed: int) -> Workload:
    """Thirty jobs on 12 GPUs, most of them elastic gangs, whose owners say how long they run."""
    draw = generator(seed)
    pods = draw.integers(1, 6, 30)
    return make_jobs(
        submit=np.sort(draw.integers(0, 900, 30)),
        runtime=draw.integers(60, 900, 30),
        gpus=draw.integers(1, 3, 30),
        pods=pods,
        floor=np.where(pods > 1, draw.integers(1, 3, 30), 0),
        priority=draw.choice([0, 0, 0, 1], 30),
    )


@pytest.mark.parametrize("name", ["fifo", "fifo-best-effort", "backfill", "kant", "sjf", "aged"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(12), deadline=None)
def test_behind_elastic_gangs_every_job_starts_as_forecast(name: str, seed: int) -> None:
    """A gang has done its share of the work at every size that it had: what it has run counts."""
    profile, jobs = builtin_profile(name), elastic_runs(seed)
    at = int(jobs.submit[-1]) + seed % 300 * SECOND
    found, observer = first_moment(at)
    simulate(jobs, make_cluster(4, 4, 4), profile, hooks=RunHooks(observer=observer))
    scheduler, moment = found[0]
    state = scheduler.state
    for job, row in forecast_starts(moment).jobs.items():
        start = int(state.jobs[state.rows[job], J_FIRST_START])
        if start >= moment.now:
            assert row.start.p50 == row.start.p90 == start, job


@pytest.mark.parametrize("pods", [3, 2])
def test_a_job_behind_an_elastic_gang_waits_for_the_rest_of_its_work(pods: int) -> None:
    """A gang of three pods has 90 s of work: after 60 s with three of them, or with two, it has 30 s or 75 s left."""
    harness = Harness(make_cluster(pods), make_profile())
    harness.submit(make_job("gang", pods=3, floor=2, estimate=90 * SECOND), runtime=90 * SECOND)
    harness.cycle(0)
    harness.submit(make_job("next", pods, estimate=SECOND))
    harness.cycle(60 * SECOND)
    assert expected(harness, "next").p50 == (90 if pods == 3 else 135) * SECOND
    twin = Harness(make_cluster(pods), make_profile())
    twin.submit(make_job("gang", pods=3, floor=2), runtime=90 * SECOND)
    twin.submit(make_job("next", pods), runtime=SECOND)
    twin.cycle(0)
    twin.run()
    assert twin.first_starts()["next"] == (90 if pods == 3 else 135) * SECOND


@pytest.mark.parametrize("pods", [3, 2])
def test_a_what_if_takes_the_rest_of_an_elastic_gang_for_its_work(pods: int) -> None:
    """What is left counts at full size, as the run time that its owner said does."""
    harness = Harness(make_cluster(pods), make_profile())
    harness.submit(make_job("gang", pods=3, floor=2, estimate=90 * SECOND))
    harness.cycle(0)
    harness.state.now = 60 * SECOND
    past: Any = SimpleNamespace(events=(), later=(), now=60 * SECOND)
    assert work_of(past, harness.state, False).left == {"gang": (30 if pods == 3 else 50) * SECOND}


def quota_of_two(**preemption: object) -> Harness:
    """Two queues of 8 GPUs on two nodes, and two jobs of `b` that hold all of it."""
    harness = Harness(make_cluster(8, 8), make_profile(preemption=Preemption(**preemption)))  # type: ignore[arg-type]
    harness.set_queues(make_queue("all"), make_queue("a", 8, parent="all"), make_queue("b", 8, parent="all"))
    harness.submit(make_job("b1", 8, queue="b", estimate=HOUR), make_job("b2", 8, queue="b", estimate=HOUR))
    harness.cycle(0)
    return harness


def test_a_start_by_reclaim_names_the_queue_the_job_and_the_protected_time() -> None:
    harness = quota_of_two(min_run_s=300)
    harness.submit(make_job("a1", 8, queue="a", estimate=HOUR))
    harness.cycle(30 * SECOND)
    basis = rests_on(harness, "a1")
    assert basis == Basis("reclaim", 5 * MINUTE, ("b2",), 0, "b", 5 * MINUTE)
    said = "by reclaim from queue b at 0d 00:05:00: job b2 stops, when it has run its protected 5m"
    assert basis_sentence(basis) == said
    harness.cycle(basis.at)
    assert "a1" in harness.running() and "b2" not in harness.running()


def test_a_start_by_priority_waits_for_the_minimum_run_time() -> None:
    harness = Harness(make_cluster(8), make_profile(preemption=Preemption(min_run_s=300)))
    harness.submit(make_job("low", 8))
    harness.cycle(0)
    harness.submit(make_job("high", 8, priority=100), make_job("equal", 8))
    harness.cycle(5 * SECOND)
    assert expected(harness, "high").p90 == 5 * MINUTE
    assert rests_on(harness, "high") == Basis("priority", 5 * MINUTE, ("low",), 0, "default", 5 * MINUTE)
    assert expected(harness, "equal") == ExpectedStart(), "nobody knows how long the others run"


def test_a_late_head_takes_its_place_back_when_its_time_is_out() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "backfill"))
    harness.submit(make_job("runs", 4, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("head", 8, estimate=HOUR), make_job("passes", 4, estimate=9 * HOUR))
    harness.cycle(MINUTE)
    basis = rests_on(harness, "head")
    assert (basis.how, basis.at, basis.jobs, basis.ran) == ("backfill", HOUR, ("passes",), HOUR)
    said = "by its time-out at 0d 01:00:00, after a wait of 1h: job passes that passed it stops"
    assert basis_sentence(basis) == said


def test_a_back_off_and_the_end_of_a_job_are_named() -> None:
    harness = Harness(make_cluster(8), make_profile(requeue=Requeue(base_s=60)))
    harness.submit(make_job("fails", 1, retries=1, estimate=MINUTE))
    harness.submit(make_job("runs", 6, estimate=5 * MINUTE), make_job("next", 4, estimate=MINUTE))
    harness.cycle()
    harness.now = 10 * SECOND
    harness.fail_job("fails")
    harness.cycle()
    assert rests_on(harness, "fails") == Basis("time", 70 * SECOND)
    assert rests_on(harness, "next") == Basis("ends", 5 * MINUTE, ("runs",))


def test_nobody_knows_what_nobody_knows() -> None:
    harness = Harness(make_cluster(8), make_profile())
    harness.set_queues(make_queue("open", 8), make_queue("shut", 8, state="hold"))
    harness.submit(make_job("endless", 6, queue="open"), make_job("shut", 1, queue="shut"))
    harness.submit(make_job("after", 4, queue="open"), make_job("core", 4, queue="open"))
    harness.submit(make_job("burst", 1, queue="open", base_job="core"))
    harness.cycle()
    found = forecast(harness).jobs
    assert set(found) == {"shut", "after", "core", "burst"}
    assert all(job.start == ExpectedStart() for job in found.values())


def test_a_job_alone_is_expected_as_among_all_and_asking_changes_nothing() -> None:
    harness = quota_of_two(min_run_s=60)
    for i in range(6):
        harness.submit(make_job(f"j{i}", 1 + i, queue="ab"[i % 2], estimate=(1 + i) * HOUR))
    harness.cycle(SECOND)
    moment = moment_of(harness.scheduler, PastJobs(), harness.now)
    whole = forecast_starts(moment)
    assert [job.place for job in whole.jobs.values()] == list(range(1, whole.of + 1)) and whole.of == len(
        whole.jobs
    ) > 3
    for job, row in whole.jobs.items():
        assert forecast_starts(moment, job).jobs == {job: row}
    harness.state.check()
    assert forecast(harness) == whole


# --- what is drawn ------------------------------------------------------------------------------------------------


class Owner:
    """A node of 8 GPUs, and jobs that take all of it, one after the other."""

    def __init__(self, said: int = -1) -> None:
        self.harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
        self.past, self.said, self.jobs = PastJobs(), said, 0
        self.harness.after_carrying_out = lambda plan: self.past.observe(self.harness.state)

    def come(self, runtime: int = HOUR) -> str:
        """A job comes. Returns its name."""
        self.jobs += 1
        job = make_job(f"j{self.jobs}", 8, submit=self.harness.now, user="ann", estimate=self.said)
        self.harness.submit(job, runtime=runtime)
        self.harness.cycle()
        return job.id

    def told(self, job: str) -> ExpectedStart:
        return forecast(self.harness, job, self.past).jobs[job].start


@pytest.mark.parametrize("said", [-1, 10 * HOUR])
def test_p50_and_p90_are_quantiles_of_the_run_times_of_the_kind(said: int) -> None:
    """Whether owners say nothing, or ten hours each time: what counts is for how long such jobs ran."""
    owner = Owner(said)
    for hours in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10) * 5:
        owner.come(hours * HOUR)
        owner.harness.run()
    owner.come(3 * HOUR)
    waits, now = owner.come(), owner.harness.now
    start = owner.told(waits)
    assert start == owner.told(waits), "the seed is the same"
    assert start.p50 in (now + 5 * HOUR, now + 6 * HOUR) and start.p90 in (now + 9 * HOUR, now + 10 * HOUR)
    owner.harness.run(until=now + 150 * MINUTE)
    owner.harness.now = now + 150 * MINUTE
    later = owner.told(waits)
    assert later.p50 in (now + 6 * HOUR, now + 7 * HOUR), "who has run for two hours and a half runs for three or more"


def test_who_always_says_the_truth_is_believed_and_a_limit_ends_a_job() -> None:
    owner = Owner()
    for hours in (1, 5, 9, 2, 7) * 4:
        owner.said = hours * HOUR
        owner.come(owner.said)
        owner.harness.run()
    owner.said = 4 * HOUR
    owner.come(owner.said)
    waits, now = owner.come(), owner.harness.now
    start = owner.told(waits)
    assert start.p50 == start.p90 == now + 4 * HOUR
    limited = make_job("limited", 8, estimate=9 * HOUR, limit=HOUR)
    assert owner.past.whole(limited, 500) == HOUR


@given(st.integers(0, 3599), st.integers(1, 999))
def test_of_a_limit_any_share_is_used_and_by_one_in_five_all_of_it(ran: int, permille: int) -> None:
    """The oracle is the law itself: of jobs that have run so long, as many are over by then as it says."""
    harness, past = Harness(make_cluster(8), make_profile()), PastJobs()
    harness.submit(make_job("own", gpus=8, limit=HOUR, estimate=HOUR))
    harness.cycle()
    row = harness.state.rows["own"]
    left = past.left(harness.state, row, ran * SECOND, permille)
    by, already = (min((ran + left / SECOND) / 3600, 1.0), ran / 3600)
    over = 1.0 if by == 1.0 else (0.8 * by - 0.8 * already) / (1 - 0.8 * already)
    assert abs(over - permille / 1000) < 0.01 or (by == 1.0 and 0.8 * (1 - already) <= permille / 1000 + 0.01)
    estimated = make_job("said", gpus=8, limit=2 * HOUR, estimate=HOUR)
    assert past.whole(estimated, permille) == HOUR, "what is no limit is believed"
    assert past.whole(make_job("limit", limit=HOUR, estimate=HOUR), permille) == past.left(
        harness.state, row, 0, permille
    )


PAST = st.tuples(st.sampled_from("ab"), st.sampled_from((1, 8)), st.integers(60, 500), st.integers(1, 100))


@given(st.lists(PAST, min_size=30, max_size=60), PAST, st.integers(1, 999))
def test_shares_are_those_of_jobs_whose_estimates_were_as_long(
    known: list[tuple[str, int, int, int]], one: tuple[str, int, int, int], permille: int
) -> None:
    """Of the user's, of all of the size, of all: ten or more that said as many powers of two, or the nearest."""
    past = PastJobs()
    for number, (user, gpus, said, share) in enumerate(known):
        job = make_job(f"j{number}", gpus, user=user, estimate=said * SECOND)
        past.remember(job, said * SECOND * share // 100)
        past.whole(make_job("own", one[1], user=one[0], estimate=one[2] * SECOND), permille)  # it changes nothing
    user, gpus, said, _ = one

    def octave(seconds: int) -> int:
        return (seconds * SECOND).bit_length()

    ways = [lambda other: other[2] == octave(said) and other[1] == gpus and other[0] == user,
            lambda other: other[2] == octave(said) and other[1] == gpus]  # fmt: skip
    near = sorted(range(60), key=lambda other: (abs(other - octave(said)), other))
    ways += [lambda other, near=near: other[2] == near for near in near]
    ways += [lambda other: other[1] == gpus and other[0] == user, lambda other: other[1] == gpus]
    of_size = [row for row in known if row[1] == gpus]
    found = [[share for *kind, length, share in known if way((*kind, octave(length)))] for way in ways]
    shares = next(sorted(each) for each in found if len(each) >= 10) if len(of_size) >= 10 else [100]
    share = shares[permille * len(shares) // 1000]
    left = past.whole(make_job("own", gpus, user=user, estimate=said * SECOND), permille)
    assert abs(left - said * SECOND * share // 100) <= said


@pytest.mark.parametrize("first", [100, 400])
def test_of_two_octaves_that_are_as_near_the_one_of_shorter_estimates_stands(first: int) -> None:
    """Jobs that said 100 s used 20 % of it, those that said 400 s 80 %; nobody else has said 200 s."""
    past = PastJobs()
    for number in range(20):
        said = first if number < 10 else 500 - first
        ran = said * SECOND * (20 if said == 100 else 80) // 100
        past.remember(make_job(f"j{number}", estimate=said * SECOND), ran)
    assert abs(past.whole(make_job("own", estimate=200 * SECOND), 500) - 40 * SECOND) <= 200


def test_who_comes_is_drawn_from_whole_days_that_were_seen() -> None:
    harness, past = Harness(make_cluster(8), make_profile()), PastJobs()
    past.observe(harness.state)
    for day in range(3):
        for hour in (9, 10 + day):
            harness.now = day * DAY + hour * HOUR
            harness.submit(make_job(f"d{day}h{hour}", 1, submit=harness.now))
            past.observe(harness.state)
            if harness.now < DAY:
                assert list(past.coming(harness.now, 0)) == [], "not one day is known"
    now = 2 * DAY + 23 * HOUR
    assert past.days(now) == 2
    for day, hours in ((0, (9, 12, 9, 11)), (1, (9, 11, 9, 12))):  # the days before come in turn
        coming = past.coming(now, day)
        times = [next(coming)[0] for _ in hours]
        assert [time % DAY // HOUR for time in times] == list(hours) and times == sorted(times) and times[0] > now
    past.begin(harness.state, 5 * HOUR)
    assert past.days(now - 5 * HOUR) == 2, "on the clock of another state"


def test_who_comes_later_and_goes_first_puts_a_start_off() -> None:
    """Every hour a job of high priority comes; on the day after, too."""
    harness, past = Harness(make_cluster(8), make_profile("fifo", "strict")), PastJobs()
    harness.after_carrying_out = lambda plan: past.observe(harness.state)
    past.observe(harness.state)
    for hour in range(26):
        harness.run(until=hour * HOUR)
        harness.now = hour * HOUR
        harness.submit(
            make_job(f"h{hour}", 8, submit=harness.now, priority=1, estimate=50 * MINUTE), runtime=50 * MINUTE
        )
        harness.cycle()
    harness.submit(make_job("low", 8, submit=harness.now, estimate=HOUR), runtime=HOUR)
    harness.cycle()
    start = forecast(harness, "low", past).jobs["low"].start
    assert start.p50 is not None and start.p50 >= harness.now + 50 * MINUTE
    alone = forecast(harness, "low").jobs["low"].start
    assert alone.p50 == harness.now + 50 * MINUTE
