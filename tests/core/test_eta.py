"""Expected starts: kept where they are promises, right where everything is known, and unknown where nobody can know."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kant.insight.eta import StartTimes, expected_starts
from kant.model.decision import Plan
from kant.model.units import FOREVER, MINUTE, SECOND
from kant.queueing.estimates import Estimates
from kant.queueing.requeue import Requeue
from kant.testing import Harness, make_cluster, make_job, make_profile, submitted
from kant.testing.builders import make_queue
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator


def eta(harness: Harness, job: str) -> StartTimes:
    """The expected start of one job at the present, in seconds."""
    early, late = expected_starts(harness.scheduler, harness.now)[job]
    return None if early is None else early // SECOND, None if late is None else late // SECOND


@pytest.mark.parametrize("seed", range(6))
def test_conservative_backfill_expects_what_it_has_promised_and_keeps_it(seed: int) -> None:
    """With the run times known and one priority, nobody starts later than it was ever expected to."""
    draw = generator(seed)
    harness = Harness(draw_cluster(draw, 5), make_profile("fifo", "conservative"), seed=seed, check=False)
    latest: dict[str, int] = {}
    promised = 0

    def look(plan: Plan) -> None:
        nonlocal promised
        state = harness.state
        for job, (early, late) in expected_starts(harness.scheduler, plan.time).items():
            row = state.rows[job]
            assert row in state.reserved and early == late == state.reserved[row].start
            latest[job] = min(latest.get(job, FOREVER), state.reserved[row].start)
            promised += 1

    harness.after_carrying_out = look
    coming = draw_arrivals(draw, 50, Mould(groups=1), gap=60, estimates="right")
    harness.run(msgspec.structs.replace(e, job=msgspec.structs.replace(e.job, priority=0)) for e in coming)
    starts = harness.first_starts()
    late = {job: starts[job] - expected for job, expected in latest.items() if starts[job] > expected}
    assert not late
    assert promised > 20


@pytest.mark.parametrize("seed", range(4))
def test_in_a_strict_queue_of_known_run_times_every_job_starts_as_expected(seed: int) -> None:
    """On one node, where nothing depends on which devices a job gets, and with nobody coming later."""
    draw = generator(seed)
    harness = Harness(make_cluster(8), make_profile("fifo", "strict"), seed=seed)
    for i in range(20):
        runtime = int(draw.integers(1, 500)) * SECOND
        job = make_job(f"j{i}", int(draw.integers(1, 9)), estimate=runtime, priority=int(draw.integers(2)))
        harness.submit(job, runtime=runtime)
    harness.cycle()
    expected = expected_starts(harness.scheduler, harness.now)
    assert len(expected) > 10
    harness.run()
    starts = harness.first_starts()
    assert {job: (starts[job], starts[job]) for job in expected} == expected


@pytest.mark.parametrize("discipline", ["strict", "best-effort", "backfill", "easy", "conservative"])
def test_p50_is_never_later_than_p90_where_run_times_are_learned(discipline: str) -> None:
    learned = replace(make_profile("fifo", discipline), estimates=Estimates(source="learned"))
    draw = generator(1)
    harness = Harness(make_cluster(8, 8), learned, check=False)
    apart = 0

    def look(plan: Plan) -> None:
        nonlocal apart
        for early, late in expected_starts(harness.scheduler, plan.time).values():
            assert early is None or early >= plan.time
            assert late is None or (early is not None and early <= late)
            apart += early is not None and late is not None and early < late

    harness.after_carrying_out = look
    coming, now = [], 0
    for i in range(120):
        now += int(draw.exponential(60)) * SECOND
        job = make_job(f"j{i}", int(draw.choice([1, 2, 8])), submit=now, user=str(draw.choice(["ann", "bob"])))
        coming.append(submitted(job, int(draw.lognormal(5, 1)) * SECOND + SECOND))
    harness.run(coming)
    assert apart > 0, "the two differ somewhere"


def test_a_job_waits_for_its_quota_as_long_as_those_run_who_use_it() -> None:
    harness = Harness(make_cluster(8, 8))
    harness.set_queues(make_queue("a", 8))
    harness.submit(make_job("runs", 6, queue="a", estimate=MINUTE), runtime=MINUTE)
    harness.submit(make_job("next", 4, queue="a", estimate=MINUTE), make_job("last", 8, queue="a", estimate=MINUTE))
    harness.cycle()
    assert eta(harness, "next") == (60, 60)
    assert eta(harness, "last") == (120, 120), "the plan has charged the quota with the job before it"


def test_nobody_knows_what_nobody_knows() -> None:
    harness = Harness(make_cluster(8), make_profile(requeue=Requeue(base_s=60)))
    harness.set_queues(make_queue("open", 8), make_queue("shut", 8, state="hold"))
    harness.submit(make_job("endless", 6, queue="open"), make_job("shut", 1, queue="shut"))
    harness.submit(make_job("after", 4, queue="open"), make_job("core", 4, queue="open"))
    harness.submit(make_job("burst", 1, queue="open", base_job="core"))
    harness.cycle()
    for job in ("shut", "after", "core", "burst"):
        assert eta(harness, job) == (None, None), job


def test_a_back_off_is_waited_for_and_a_burst_starts_with_its_core() -> None:
    harness = Harness(make_cluster(8), make_profile(requeue=Requeue(base_s=60)))
    harness.submit(make_job("fails", 1, retries=1, estimate=MINUTE))
    harness.submit(make_job("runs", 6, estimate=5 * MINUTE))
    harness.submit(make_job("core", 4, estimate=MINUTE), make_job("burst", 1, base_job="core", estimate=MINUTE))
    harness.cycle()
    harness.now = 10 * SECOND
    harness.fail_job("fails")
    harness.cycle()
    assert eta(harness, "fails") == (70, 70)
    assert eta(harness, "core") == eta(harness, "burst") == (300, 300)


def test_one_job_alone_is_expected_when_all_are_asked() -> None:
    draw = generator(5)
    harness = Harness(draw_cluster(draw, 4), make_profile("fifo", "backfill"), check=False)
    harness.run(draw_arrivals(draw, 60, gap=20, estimates="right"), until=1200 * SECOND)
    everybody = expected_starts(harness.scheduler, harness.now)
    assert len(everybody) > 5
    for job, expected in everybody.items():
        assert expected_starts(harness.scheduler, harness.now, only=job)[job] == expected
    assert np.all([early is None or early >= harness.now for early, _ in everybody.values()])
