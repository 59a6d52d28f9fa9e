"""A driver may refuse: the job is in the queue as before, and starts later."""

from __future__ import annotations

import numpy as np
import pytest

from kant.cluster import columns as c
from kant.model.decision import Start
from kant.model.event import JobRefused, JobStarted
from kant.model.units import MINUTE, SECOND
from kant.scheduler.registry import policies
from kant.testing import Harness, always, at_random, make_cluster, make_job, make_profile, never, submitted
from kant.testing.drawn import Mould, draw_arrivals, generator

DISCIPLINES = list(policies("discipline"))


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_job_that_is_refused_waits_again_and_starts_when_the_driver_lets_it(discipline: str) -> None:
    harness = Harness(make_cluster(4), make_profile("fifo", discipline), refuse=always)
    harness.submit(make_job("gang", gpus=1, pods=3))
    for now in range(3):
        plan = harness.cycle(now * SECOND)
        assert [type(decision) for decision in plan.decisions] == [Start]
        assert (harness.waiting(), harness.running()) == (["gang"], [])
        assert int(harness.state.table[0, c.FREE]) == 4000
    harness.refuse = never
    harness.cycle(3 * SECOND)
    assert harness.running() == ["gang"]


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_no_job_is_lost_to_a_driver_that_refuses_at_random(discipline: str) -> None:
    harness = Harness(make_cluster(4, 8, 2), make_profile("fifo", discipline), refuse=at_random(0.5, 3), check=False)
    harness.run(draw_arrivals(generator(8), 60, Mould(groups=1), gap=60))
    harness.state.check()
    assert len(harness.state.ids) == 60
    assert not harness.state.live
    assert any(isinstance(event, JobRefused) for event in harness.events)


def test_a_refused_job_keeps_its_place_in_a_strict_queue() -> None:
    refused = {"first"}
    harness = Harness(make_cluster(1), make_profile("fifo", "strict"), refuse=lambda start: start.job in refused)
    harness.submit(make_job("first"), make_job("second"))
    assert [d.job for d in harness.cycle(0).decisions if isinstance(d, Start)] == ["first"]
    refused.clear()
    harness.cycle(1)
    assert harness.running() == ["first"]


def test_a_job_whose_start_was_refused_was_never_running() -> None:
    """As `JobRefused` says: it waits as before, has had no service and has all of its work before it."""
    harness = Harness(make_cluster(2))
    for job in ("refused", "left alone"):
        harness.state.apply(submitted(make_job(job, estimate=10 * MINUTE)))
    one = np.array([[0, 1, 1, 1000, 0, 0, 1, 0, 0]], dtype=np.int64)
    harness.happen(JobStarted(60 * SECOND, "refused", one))
    harness.happen(JobRefused(65 * SECOND, "refused", "the image could not be pulled"))
    both = [
        JobStarted(100 * SECOND, name, one * [1, 1, mask, 1, 1, 1, 1, 1, 1])
        for name, mask in (("refused", 1), ("left alone", 2))
    ]
    for event in both:
        harness.happen(event)
    refused, alone = harness.state.jobs[0], harness.state.jobs[1]
    for column in ("J_WAITED", "J_FIRST_START", "J_ATTAINED", "J_REMAINING", "J_PREEMPTIONS"):
        assert refused[getattr(c, column)] == alone[getattr(c, column)], column
