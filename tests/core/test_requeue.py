"""Jobs that come back: why, how long they wait, how often they may; and that none is ever lost."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.examples import examples

from kant.cluster import columns as c
from kant.insight.explanation import why
from kant.model.decision import BackOff, Expire, NoFit, Plan, Reject, RetriesUsed, Start
from kant.model.event import JobFailed, JobRefused, JobRejected, JobSubmitted
from kant.model.status import JobStatus
from kant.model.units import HOUR, MINUTE, SECOND
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.testing import Harness, always, at_random, make_cluster, make_job, make_profile, never
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator

SEEDS = range(examples(24))
DISCIPLINES: tuple[Any, ...] = (
    "strict",
    "best-effort",
    {"policy": "backfill", "timeout_s": 600},
    "easy",
    "conservative",
)
OUT = (JobStatus.FINISHED, JobStatus.REJECTED, JobStatus.CANCELLED)
BACK_OFF = Requeue(base_s=10, max_s=35)


def started(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Start)]


@pytest.mark.parametrize("how", ["failed", "evicted", "refused"])
def test_each_return_in_a_row_waits_twice_as_long_up_to_a_bound(how: str) -> None:
    """And says until when; the plan asks for a cycle then."""
    harness = Harness(make_cluster(1), make_profile(requeue=BACK_OFF))
    harness.refuse = always if how == "refused" else never
    harness.submit(make_job("j", retries=9))
    now = 0
    for returns, wait in enumerate((10, 20, 35, 35), start=1):
        assert started(harness.cycle(now)) == ["j"]
        if how == "failed":
            harness.fail_job("j")
        elif how == "evicted":
            harness.evict("j")
        until = now + wait * SECOND
        plan = harness.cycle(until - 1)
        assert (started(plan), plan.review_at) == ([], until)
        assert why(harness.scheduler, "j") == BackOff(returns, until)
        now = until
    assert started(harness.cycle(now)) == ["j"]


def test_a_start_that_is_refused_late_backs_off_from_the_refusal() -> None:
    """On a cluster an answer may take half a minute: the back-off is not over by then, and others get the place."""
    harness = Harness(make_cluster(1), make_profile(requeue=BACK_OFF))
    harness.submit(make_job("refused"))
    harness.cycle(0)
    harness.submit(make_job("other"))
    harness.cycle(30 * SECOND)
    harness.happen(JobRefused(30 * SECOND, "refused", "its webhook does not answer"))
    assert started(harness.cycle(30 * SECOND)) == ["other"]
    assert why(harness.scheduler, "refused") == BackOff(1, 40 * SECOND)
    waited, since = harness.state.jobs[harness.state.rows["refused"], [c.J_WAITED, c.J_SINCE]].tolist()
    assert waited + harness.now - since == 30 * SECOND, "it waited all the time"


def test_whoever_the_scheduler_stopped_waits_for_nothing_and_begins_to_count_anew() -> None:
    harness = Harness(make_cluster(1), make_profile(preemption=Preemption(min_run_s=0), requeue=BACK_OFF))
    harness.submit(make_job("j", retries=9))
    harness.cycle(0)
    harness.fail_job("j")
    harness.cycle(10 * SECOND)
    harness.submit(make_job("high", priority=1))
    harness.cycle(20 * SECOND)
    assert harness.running() == ["high"]
    assert isinstance(why(harness.scheduler, "j"), NoFit)
    harness.finish("high")
    assert started(harness.cycle(20 * SECOND)) == ["j"]
    harness.fail_job("j")
    harness.cycle(20 * SECOND)
    assert why(harness.scheduler, "j") == BackOff(1, 30 * SECOND)


@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
def test_whoever_backs_off_stands_in_nobodys_way_and_keeps_its_place(discipline: Any) -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", discipline, requeue=BACK_OFF))
    harness.submit(make_job("first", retries=1), make_job("second"), make_job("third"))
    harness.cycle(0)
    harness.fail_job("first")
    assert started(harness.cycle(0)) == ["second"]
    harness.finish("second")
    harness.now = 10 * SECOND
    assert started(harness.cycle(10 * SECOND)) == ["first"]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_job_is_tried_as_often_as_it_may_and_then_leaves_with_its_reason(retries: int) -> None:
    harness = Harness(make_cluster(1))
    harness.submit(make_job("j", retries=retries))
    for _ in range(retries + 1):
        assert started(harness.cycle()) == ["j"]
        harness.fail_job("j")
    plan = harness.cycle()
    assert [d for d in plan.decisions if isinstance(d, Reject)] == [Reject("j", RetriesUsed(retries + 1))]
    assert harness.status("j") is JobStatus.REJECTED


def test_refusals_and_evictions_use_up_no_retries() -> None:
    harness = Harness(make_cluster(1), refuse=always)
    harness.submit(make_job("j"))
    for _ in range(5):
        harness.cycle()
    harness.refuse = never
    for _ in range(5):
        harness.cycle()
        harness.evict("j")
    assert harness.status("j") is JobStatus.PENDING
    assert not any(isinstance(event, JobRejected) for event in harness.events)


def test_a_job_is_stopped_on_time_at_its_limit_though_nothing_else_happens() -> None:
    """The plan that starts it asks for the cycle that stops it; that one gives its place to the next."""
    harness = Harness(make_cluster(1))
    harness.submit(make_job("long", limit=MINUTE), make_job("next"))
    assert harness.cycle(0).review_at == MINUTE
    assert not any(isinstance(d, Expire) for d in harness.cycle(MINUTE - 1).decisions)
    plan = harness.cycle(MINUTE)
    assert (plan.decisions[0], started(plan), plan.review_at) == (Expire("long"), ["next"], MINUTE + 1)
    harness.cycle(MINUTE + 1)
    assert harness.status("long") is JobStatus.REJECTED
    failed = [event for event in harness.events if isinstance(event, JobFailed)]
    assert [(event.job, event.reason) for event in failed] == [("long", "limit")]


def test_a_limit_is_of_each_run_and_not_of_all_together() -> None:
    harness = Harness(make_cluster(1))
    harness.submit(make_job("j", limit=HOUR))
    harness.cycle(0)
    harness.now = HOUR - SECOND
    harness.evict("j")
    assert harness.cycle(HOUR).review_at == 2 * HOUR
    assert harness.cycle(2 * HOUR - 1).decisions == []
    assert isinstance(harness.cycle(2 * HOUR).decisions[0], Expire)


class Unlucky(Harness):
    """Before each cycle some who run fail, or lose their nodes."""

    def cycle(self, now: int | None = None) -> Plan:
        self.now = self.now if now is None else now
        luck = generator(len(self.plans) + 1000 * self.seed)
        for job in self.running():
            if luck.random() < 0.03:
                (self.fail_job if luck.integers(2) else self.evict)(job)
        return super().cycle(self.now)


def unlucky(draw: np.random.Generator) -> list[JobSubmitted]:
    """Jobs with limits that they meet or not, and retries."""
    coming: list[JobSubmitted] = []
    for event in draw_arrivals(draw, 40, Mould(groups=1), gap=100):
        changes: dict[str, Any] = {"retries": int(draw.integers(0, 4))}
        if draw.integers(2):
            changes["limit"] = max(event.runtime * int(draw.choice([1, 3])) // 2, SECOND)
        coming.append(msgspec.structs.replace(event, job=msgspec.structs.replace(event.job, **changes)))
    return coming


@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
def test_whatever_fails_no_job_is_lost_none_outlives_its_limit_and_all_leave(discipline: Any, preempts: bool) -> None:
    assert sum(failures_in_a_run(seed, discipline, preempts) for seed in SEEDS) > 5 * len(SEEDS)


def failures_in_a_run(seed: int, discipline: Any, preempts: bool) -> int:
    draw = generator(seed)
    rights = Preemption(min_run_s=60) if preempts else None
    profile = make_profile("fifo", discipline, "best-fit", rights, Requeue(base_s=int(draw.choice([0, 30]))))
    harness = Unlucky(draw_cluster(draw, 5), profile, seed=seed, refuse=at_random(0.2, seed), check=False)
    coming = unlucky(draw)

    def look(plan: Plan) -> None:
        """Nobody is lost, and nobody runs past his limit."""
        state = harness.state
        for row, job in list(state.live.items()):
            known = (row in state.pending) + (row in state.running)
            assert known == 1, f"seed {seed}: {job.id} is lost"
            if row in state.running and job.limit >= 0:
                assert plan.time < state.jobs[row, c.J_STARTED] + job.limit, f"seed {seed}: {job.id} outlives its limit"

    harness.after_carrying_out = look
    harness.run(coming)
    state = harness.state
    state.check()
    assert len(state.ids) == len(coming)
    assert not state.live, (
        f"seed {seed}: {[(state.ids[row], why(harness.scheduler, state.ids[row])) for row in state.live]}"
    )
    assert all(harness.status(job) in OUT for job in state.rows)
    for job in (event.job for event in coming):
        failures = int(state.jobs[state.rows[job.id], c.J_FAILURES])
        assert failures <= job.retries + 1, f"seed {seed}: {job.id} is tried too often"
    return int(state.jobs[: len(state.ids), c.J_FAILURES].sum())
