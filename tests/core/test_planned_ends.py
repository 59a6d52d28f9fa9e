"""When a plan expects a job to end: by what is said or learned of it, by its time limit, and with its booking."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.test_bookings import book, inside

from kant.cluster.columns import J_LIMIT, J_P50, J_P90, J_REMAINING, LEARNED_WIDTH, planned_run
from kant.model.event import JobProgressed
from kant.model.tenant import Queue
from kant.model.units import FOREVER, HOUR, SECOND
from kant.queueing.estimates import Estimates
from kant.testing import Harness, make_cluster, make_job, make_profile

DISCIPLINES = ("easy", "conservative")


def reserved(harness: Harness, job: str) -> int:
    """When the reservation of a waiting job begins, seconds."""
    return harness.state.reserved[harness.state.rows[job]].start // SECOND


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("estimate", [-1, 5000 * SECOND])
def test_a_job_with_a_limit_is_planned_to_end_at_its_limit(discipline: str, estimate: int) -> None:
    """Two GPUs: one job runs for 100 s at most, and the next needs both. A third fits before that one, by its limit."""
    harness = Harness(make_cluster(1, 1), make_profile("fifo", discipline))
    harness.submit(make_job("runs", estimate=estimate, limit=100 * SECOND))
    harness.submit(make_job("wide", pods=2, estimate=estimate, limit=50 * SECOND))
    harness.submit(make_job("long", estimate=estimate, limit=101 * SECOND))
    harness.submit(make_job("fits", estimate=estimate, limit=100 * SECOND))
    harness.cycle()
    assert harness.running() == ["runs", "fits"]
    assert reserved(harness, "wide") == 100
    if discipline == "conservative":
        assert reserved(harness, "long") == 150


def test_a_job_without_a_limit_of_its_own_is_planned_by_the_maximum_of_its_queue() -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", "easy"))
    harness.set_queues(Queue("debug", max_time=HOUR))
    harness.submit(make_job("runs", queue="debug"), make_job("next", queue="debug"))
    harness.cycle()
    assert reserved(harness, "next") == 3600


def test_a_learned_run_time_is_cut_at_the_limit_too() -> None:
    job = np.zeros(LEARNED_WIDTH, dtype=np.int64)
    job[[J_REMAINING, J_P50, J_P90]] = -1, 70 * SECOND, 900 * SECOND
    for limit, column, wanted in ((-1, J_P90, 900), (100, J_P90, 100), (100, J_P50, 70), (1000, J_P90, 900)):
        job[J_LIMIT] = limit * SECOND if limit > 0 else -1
        assert planned_run(job, column) == wanted * SECOND
    job[J_LIMIT] = -1
    assert planned_run(job, -1) == FOREVER


def test_a_job_that_outlives_its_estimate_is_still_expected_to_end_at_its_limit() -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", "easy"))
    harness.submit(make_job("runs", estimate=100 * SECOND, limit=150 * SECOND))
    harness.cycle()
    harness.submit(make_job("next", estimate=SECOND))
    harness.cycle(SECOND)
    assert reserved(harness, "next") == 100
    harness.cycle(100 * SECOND)
    assert reserved(harness, "next") == 150, "and not 200, twice the estimate"


def test_the_limit_counts_from_the_start_of_the_run_whatever_the_job_reports() -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", "easy"))
    harness.submit(make_job("runs", estimate=90 * SECOND, limit=100 * SECOND))
    harness.cycle()
    harness.happen(JobProgressed(60 * SECOND, "runs", 80 * SECOND))
    harness.submit(make_job("next", estimate=SECOND))
    harness.cycle(60 * SECOND)
    assert reserved(harness, "next") == 100, "and not 140, which its owner would need"


def test_who_is_not_stopped_at_the_limit_is_expected_to_end_later_than_now() -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", "easy"))
    harness.submit(make_job("runs", limit=100 * SECOND))
    harness.cycle()
    state = harness.state
    ends = [Estimates().end(state, 0, at * SECOND) // SECOND for at in (0, 99, 100, 150, 200, 400)]
    assert ends == [100, 100, 200, 200, 400, 800]


def test_more_pods_do_not_bring_the_limit_of_a_gang_forward_nor_fewer_put_it_off() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "easy"))
    harness.submit(make_job("gang", pods=4, floor=1, limit=100 * SECOND))
    harness.cycle()
    planned = [Estimates().end(harness.state, 0, 20 * SECOND, pods) for pods in (1, 2, 4, 8)]
    assert planned == [100 * SECOND] * 4
    assert Estimates().duration(harness.state, 0, 1) == 100 * SECOND


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("estimate", [-1, HOUR])
def test_a_job_inside_a_booking_is_planned_to_end_with_it(discipline: str, estimate: int) -> None:
    """It does end then: the next job starts at that second, as its reservation says."""
    harness = Harness(make_cluster(1), make_profile("fifo", discipline))
    book(harness, "r", 0, 200 * SECOND, (0, 0b1))
    harness.submit(inside("own", "r", estimate=estimate), make_job("next", estimate=10 * SECOND))
    for time in (0, 1):  # in the plan that starts it, and once it runs
        harness.cycle(time * SECOND)
        assert harness.running() == ["own"] and reserved(harness, "next") == 200
    harness.cycle(200 * SECOND)
    harness.cycle(200 * SECOND + 1)
    assert harness.running() == ["next"]
