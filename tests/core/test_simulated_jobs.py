"""What being stopped costs a simulated job, when its limit ends it, and what users say of its run time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.units import SECOND
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.options import SimOptions, read_options
from kant.sim.run import simulate
from kant.sim.speed import ResumeCost, Steady
from kant.testing import make_cluster, make_jobs, make_profile
from kant.testing.drawn import generator


@pytest.mark.parametrize(
    ("checkpoint", "lost"),
    [(None, 0), (0, 250), (100, 50), (300, 250), (50, 0)],
    ids=["free", "none", "100", "300", "50"],
)
def test_a_stopped_job_loses_what_its_last_checkpoint_has_not(checkpoint: int | None, lost: int) -> None:
    speed = Steady(ResumeCost(((8, 7 / SECOND),)), checkpoint)
    speed.submitted(0, 1000, 0)
    speed.started(0, 10)
    assert speed.stopped(0, 1, 260) == lost + 7
    speed.started(0, 300)
    assert speed.next_end == 300 + 1000 - 250 + lost + 7


def preempted(**options: Any) -> dict[str, Any]:
    """A long job is stopped for a short one after 65 s."""
    jobs = make_jobs(submit=[0, 65], runtime=[200, 10], gpus=[8, 8])
    return simulate(jobs, make_cluster(8), make_profile("srtf", "preemptive", **options)).summary


@pytest.mark.parametrize(("checkpoint_s", "lost"), [(None, 0), (60, 5), (-1, 65)])
def test_the_lost_work_is_done_again_and_counted(checkpoint_s: int | None, lost: int) -> None:
    found = preempted(**({} if checkpoint_s is None else {"checkpoint_s": checkpoint_s}))
    assert found["preemptions"] == 1
    assert found["makespan_s"] == 210 + lost
    assert found["lost_gpu_s"] == 8 * lost


def test_a_job_is_stopped_at_its_limit_and_tried_again_as_often_as_it_may() -> None:
    jobs = make_jobs(submit=[0, 0], runtime=[100, 30], limit=[40, 40], gpus=[1, 1])
    run = simulate(jobs, make_cluster(1, 1), make_profile(enforce_limits=True, retries=2, checkpoint_s=-1))
    assert (run.summary["completed"], run.summary["rejected"], run.summary["failures"]) == (1, 1, 3)
    assert run.jobs.end.tolist() == [120 * SECOND, 30 * SECOND]
    saved = simulate(jobs, make_cluster(1, 1), make_profile(enforce_limits=True, retries=2, checkpoint_s=10))
    assert (saved.summary["completed"], saved.summary["failures"]) == (2, 2)
    assert saved.jobs.end.tolist() == [100 * SECOND, 30 * SECOND]
    assert simulate(jobs, make_cluster(1, 1), make_profile()).summary["failures"] == 0


def estimates(factor: float, seed: int) -> np.ndarray:
    draw = generator(3)
    jobs = make_jobs(submit=np.arange(400), runtime=draw.integers(1, 10_000, 400))
    options = SimOptions(estimate_factor=factor)
    coming: list[JobSubmitted] = list(Arrivals(jobs, Gangs(make_cluster(8), False), options, seed))
    return np.array([event.job.estimate / event.runtime for event in coming])


def test_users_say_too_much_by_a_factor_of_their_own() -> None:
    assert (estimates(1, 0) == 1).all()
    found = estimates(8, 0)
    assert 1 <= found.min() < 1.1 and 7 < found.max() <= 8
    assert np.median(found) == pytest.approx(8**0.5, rel=0.15)  # log-uniform
    assert np.array_equal(found, estimates(8, 0)) and not np.array_equal(found, estimates(8, 1))


@pytest.mark.parametrize(
    "options",
    [{"checkpoint_s": 0}, {"checkpoint_s": -2}, {"retries": -1}, {"estimate_factor": 0.5},
     {"checkpoint_s": 5, "speed": "interval-overhead"}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        read_options(options, "profile test")


def test_when_a_core_ends_its_bursts_end_with_it() -> None:
    """Job 1 runs beside the base job, job 2 waits, job 3 comes after it has left, job 4 is nobody's burst replica."""
    jobs = make_jobs(
        submit=[0, 10, 20, 150, 160], runtime=[100, 500, 500, 500, 5], gpus=[1, 1, 2, 1, 1], base_job=[-1, 0, 0, 0, -1]
    )
    run = simulate(jobs, make_cluster(2), make_profile())
    assert run.summary["completed"] == 3 and run.summary["cancelled"] == 2
    assert (run.jobs.end // SECOND).tolist() == [100, 100, 100, 150, 165]


def test_bursts_of_a_core_that_can_never_run_leave_with_it() -> None:
    jobs = make_jobs(submit=[0, 0, 5], runtime=[100, 50, 50], gpus=[9, 1, 1], base_job=[-1, 0, 0])
    run = simulate(jobs, make_cluster(2), make_profile())
    assert (run.summary["rejected"], run.summary["cancelled"]) == (1, 2)


def test_a_discipline_that_ignores_bursts_is_refused() -> None:
    jobs = make_jobs(submit=[0, 5], runtime=[100, 50], base_job=[-1, 0])
    with pytest.raises(InputError, match="burst replicas"):
        simulate(jobs, make_cluster(2), make_profile("srtf", "preemptive"))


def test_due_dates_come_from_the_workload_and_tardiness_goes_into_the_summary() -> None:
    """Three jobs of 10, 20 and 5 seconds on one GPU, due at 100, 12 and 4 s: by due date they end at 35, 25 and 5 s."""
    jobs = make_jobs(submit=[0, 0, 0], runtime=[10, 20, 5], gpus=[1, 1, 1])
    jobs = replace(jobs, due=np.array([100, 12, 4]) * SECOND)
    found = simulate(jobs, make_cluster(1), make_profile("edd")).summary["tardiness_s"]
    assert (found["count"], found["late"], found["sum"], found["max"]) == (3, 2, 14.0, 13.0)
    first = simulate(jobs, make_cluster(1), make_profile("fifo")).summary["tardiness_s"]
    assert first["sum"] == (30 - 12) + (35 - 4)


@pytest.mark.parametrize("discipline", ["strict", "best-effort", "backfill", "easy", "conservative"])
def test_jobs_of_run_time_0_end_in_the_instant_in_which_they_start(discipline: str) -> None:
    """What they held is free in the same instant: of four jobs that want the whole cluster the last one starts last."""
    jobs = make_jobs(submit=[3, 3, 3, 3], runtime=[0, 0, 5, 0], gpus=[2, 2, 2, 2])
    table = simulate(jobs, make_cluster(2), make_profile("fifo", discipline)).jobs
    assert (table.first_start // SECOND).tolist() == [3, 3, 3, 8]
    assert (table.end // SECOND).tolist() == [3, 3, 8, 8]
    assert not (table.end % SECOND).any()


def test_jobs_after_a_job_of_run_time_0_start_in_its_instant() -> None:
    jobs = make_jobs(submit=[0, 0, 0], runtime=[0, 0, 1])
    chain = replace(jobs, after=np.array([[1, 0], [2, 1]]))
    table = simulate(chain, make_cluster(1), make_profile()).jobs
    assert (table.end // SECOND).tolist() == [0, 0, 1]
