"""A live core says when it keeps much more than what is live, and what it has learned is bounded."""

from __future__ import annotations

from unittest.mock import patch

from msgspec.structs import replace

from kant.insight import past_jobs
from kant.insight.past_jobs import MOST_RUNS
from kant.live import core as live
from kant.live.core import CHANGES_EACH, Core
from kant.model.event import JobFinished, JobPreempted, JobStarted, JobSubmitted
from kant.model.job import Job
from kant.model.units import HOUR
from kant.testing import make_cluster, make_job, make_profile


def started(core: Core, job: Job) -> None:
    core.happen(JobSubmitted(core.now, job))
    (start,) = core.cycle().decisions
    core.happen(JobStarted(core.now, job.id, start.allocation))  # type: ignore[union-attr]


def named(name: str) -> Job:
    return replace(make_job("j", 1), name=name)


def new_core(before: Core | None = None) -> Core:
    core = Core(make_cluster(8), make_profile())
    core.settled()
    core.inherit(before)
    return core


def test_ten_thousand_jobs_that_come_and_go_are_kept_in_part_by_a_core_that_is_built_anew() -> None:
    core, builds, most = new_core(), 0, 0
    with patch.object(live, "FORGET", 1000):
        for number in range(10_000):
            job = make_job(f"j{number}", 1)
            started(core, job)
            core.happen(JobFinished(core.now, job.id))
            core.attribute()
            core.observe()
            most = max(most, len(core.state.ids), len(core.state.rows), len(core.state.job_changes) // CHANGES_EACH)
            if core.is_overgrown:
                core, builds = new_core(core), builds + 1
    assert (builds, most) == (9, 1001) and not core.is_overgrown


def test_one_job_that_is_preempted_again_and_again_makes_the_log_of_changes_long() -> None:
    core, job = new_core(), make_job("j", 1)
    started(core, job)
    with patch.object(live, "FORGET", 100):
        for _ in range(1000):
            (allocation,) = core.state.running.values()
            core.happen(JobPreempted(core.now, "j"))
            core.happen(JobStarted(core.now, "j", allocation))
            core.observe()
            if core.is_overgrown:
                break
    assert len(core.state.ids) == 1 and 100 < len(core.state.job_changes) / CHANGES_EACH < 104


def test_what_is_learned_of_ten_thousand_kinds_is_what_the_latest_runs_say() -> None:
    core, again = new_core(), new_core()
    with patch.object(past_jobs, "MOST_KINDS", MOST_RUNS):
        for number in range(10_000):
            job = named(f"n{number // 20}")
            core.past.remember(job, number + HOUR)
            if number >= 10_000 - MOST_RUNS:
                again.past.remember(job, number + HOUR)
        assert new_core(core).past is core.past, "there are few"
        for number in range(10_000):
            core.past.remember(named(f"m{number}"), HOUR)
        for number in range(MOST_RUNS):
            job = named(f"late{number // 20}")
            core.past.remember(job, number + HOUR)
            again.past.remember(job, number + HOUR)
        kept = new_core(core).past
    assert kept is not core.past and len(kept._like) == MOST_RUNS // 20 and kept.learned == core.past.learned
    assert kept.runs() == core.past.runs() == again.past.runs()
    job = named("late7")
    for permille in (100, 500, 900):
        assert kept.whole(job, permille) == core.past.whole(job, permille) == again.past.whole(job, permille)


def test_arrivals_and_the_time_since_when_they_are_known_survive() -> None:
    core = new_core()
    core.past._began = core.now - 50 * HOUR
    with patch.object(past_jobs, "MOST_KINDS", 0):
        started(core, make_job("a", 1))
        core.observe()
        kept = new_core(core).past
    assert kept is not core.past
    assert (kept.days(core.now), [job.id for _, job in kept._arrivals]) == (2, ["a"])
