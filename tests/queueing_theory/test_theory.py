"""Clusters whose waits are known: by recursion job for job, and by the formulas of queueing theory in the mean.

Jobs of one GPU on nodes of one GPU are customers and servers. Seeds are fixed. A mean is compared within the
confidence bounds of its batch means: with 30 batches and a level of 99.9 %, 3.66 standard errors.
"""

from __future__ import annotations

import math
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import pytest

from kant.metrics.result import RunResult
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.scheduler.registry import policies
from kant.sim.run import simulate
from kant.testing import make_cluster, make_profile
from kant.testing.drawn import generator
from kant.workload.workload import make_workload

pytestmark = pytest.mark.long

BATCHES, T_999 = 30, 3.66
JOBS = 12_000
MEAN = 100 * SECOND
"""The mean service time."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


def arrivals(seed: int, rate: float, jobs: int = JOBS) -> Ints:
    """Poisson arrivals, `rate` in each mean service time."""
    gaps = generator(seed).exponential(MEAN / rate, jobs)
    times = np.cumsum(gaps).astype(np.int64)
    return times - times[0]


def services(seed: int, law: str, jobs: int = JOBS) -> Ints:
    """Service times of mean MEAN: exponential, constant, or lognormal with a squared variation of 3."""
    draw = generator(1000 + seed)
    if law == "constant":
        return np.full(jobs, MEAN, dtype=np.int64)
    if law == "exponential":
        return np.maximum(draw.exponential(MEAN, jobs), 1).astype(np.int64)
    spread = math.sqrt(math.log(1 + VARIATION[law]))
    return np.maximum(MEAN * draw.lognormal(-(spread**2) / 2, spread, jobs), 1).astype(np.int64)


VARIATION = {"constant": 0.0, "exponential": 1.0, "lognormal": 3.0}
"""Squared coefficient of variation."""


def run(
    submit: Ints, runtime: Ints, servers: int, discipline: Any = "strict", order: str = "fifo", **columns: Ints
) -> RunResult:
    workload = make_workload("theory", submit, runtime, np.ones(len(submit), dtype=np.int64), **columns)
    return simulate(workload, make_cluster(*[1] * servers), make_profile(order, discipline, "first-fit"))


def within_bounds(values: np.ndarray, expected: float) -> None:
    """The mean of `values` (in order of arrival, without the first batch) agrees with `expected`."""
    batches = np.array([batch.mean() for batch in np.array_split(values, BATCHES + 1)[1:]])
    error = batches.std(ddof=1) / math.sqrt(BATCHES)
    assert abs(batches.mean() - expected) < T_999 * error, (batches.mean(), expected, error)
    assert error < 0.15 * expected, "too wide a bound proves nothing"


def erlang_b(servers: int, load: float) -> float:
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = load * blocked / (c + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


@pytest.mark.parametrize(("servers", "law"), [(1, "lognormal"), (3, "exponential"), (8, "lognormal")])
def test_first_come_first_served_starts_each_job_when_the_recursion_says(servers: int, law: str) -> None:
    """Kiefer and Wolfowitz, 1955 (Lindley's for one server): the next job goes to the server that is free first."""
    submit, runtime = arrivals(1, 0.9 * servers, 6_000), services(1, law, 6_000)
    free = [0] * servers
    heapify(free)
    expected = []
    for at, service in zip(submit.tolist(), runtime.tolist(), strict=True):
        start = max(at, free[0])
        heapreplace(free, start + service)
        expected.append(start)
    assert run(submit, runtime, servers).jobs.first_start.tolist() == expected


@pytest.mark.parametrize("law", VARIATION)
def test_one_server_waits_as_pollaczek_and_khinchine_say(law: str) -> None:
    """M/G/1 (M/M/1, M/D/1): W = rho / (1 - rho) * (1 + c^2) / 2 mean service times."""
    rho = 0.6
    result = run(arrivals(2, rho), services(2, law), 1)
    within_bounds(result.jobs.wait / MEAN, rho / (1 - rho) * (1 + VARIATION[law]) / 2)
    assert result.summary["sor"] == pytest.approx(rho, rel=0.03)


@pytest.mark.parametrize(("servers", "rho", "jobs"), [(4, 0.8, JOBS), (16, 0.9, 2 * JOBS)])
def test_many_servers_wait_as_erlang_c_says(servers: int, rho: float, jobs: int) -> None:
    result = run(arrivals(3, rho * servers, jobs), services(3, "exponential", jobs), servers)
    waits = result.jobs.wait / MEAN
    delayed = erlang_c(servers, rho * servers)
    within_bounds(waits > 0, delayed)
    within_bounds(waits, delayed / (servers * (1 - rho)))


@pytest.mark.parametrize("law", VARIATION)
def test_a_loss_system_turns_away_as_erlang_b_says_whatever_the_law_of_service(law: str) -> None:
    servers, load = 6, 4.0
    result = run(arrivals(4, load), services(4, law), servers, "loss")
    within_bounds(result.jobs.status == JobStatus.REJECTED, erlang_b(servers, load))
    assert result.summary["rejected"] + result.summary["completed"] == JOBS
    assert int(result.jobs.wait.max()) == 0


def test_two_priorities_wait_as_cobham_says() -> None:
    """Non-preemptive M/M/1: W1 = W0 / (1 - rho1), W2 = W0 / ((1 - rho1)(1 - rho)), with W0 = rho mean services."""
    rho, urgent = 0.75, 0.4
    submit, runtime = arrivals(5, rho), services(5, "exponential")
    first = generator(6).random(JOBS) < urgent
    result = run(submit, runtime, 1, priority=first.astype(np.int64))
    waits, rho1 = result.jobs.wait / MEAN, rho * urgent
    within_bounds(waits[first], rho / (1 - rho1))
    within_bounds(waits[~first], rho / ((1 - rho1) * (1 - rho)))


def test_jobs_of_preemptive_priority_do_not_notice_the_others() -> None:
    """Their waits are those of a server of their own, job for job; the work of the others is only put off."""
    submit, runtime = arrivals(7, 0.8, 4_000), services(7, "exponential", 4_000)
    first = generator(8).random(4_000) < 0.4
    discipline = {"policy": "preemptive", "min_run_s": 0}
    both = run(submit, runtime, 1, discipline, priority=first.astype(np.int64))
    free, expected = 0, []
    for at, service in zip(submit[first].tolist(), runtime[first].tolist(), strict=True):
        expected.append(max(at, free) - at)
        free = max(at, free) + service
    assert both.jobs.wait[first].tolist() == expected
    alone = run(submit, runtime, 1)
    assert both.jobs.end.max() == alone.jobs.end.max()
    assert both.summary["sor"] == pytest.approx(alone.summary["sor"], rel=1e-12)


@pytest.mark.parametrize("discipline", policies("discipline"))
@pytest.mark.parametrize("order", ["fifo", "srtf"])
def test_little_s_law_holds_to_the_microsecond(discipline: str, order: str) -> None:
    """Over a whole run the waiting jobs, summed over time, are the waits, summed over jobs: L T = n W."""
    result = run(arrivals(9, 3.4, 500), services(9, "lognormal", 500), 4, discipline, order)
    series = result.series
    spans = np.diff(np.append(series.time, result.end))
    assert int((series.waiting_jobs * spans).sum()) == int(result.jobs.wait.sum())
    assert int((series.waiting_gpus * spans // 1000).sum()) == int(result.jobs.wait.sum())
    assert int((series.allocated * spans // 1000).sum()) == int(
        (result.jobs.end - result.jobs.submit - result.jobs.wait).sum()
    )
