"""What would free a waiting job beside GPUs that are booked: what is named comes true on a copy of the state."""

from __future__ import annotations

import pytest
from tests.core.test_bookings import book

from kant.cluster.columns import J_PREEMPTIBLE
from kant.insight.diagnosis import Diagnosis
from kant.insight.find_suggestions import find_suggestions
from kant.insight.moment import freeze, thaw
from kant.insight.starts_now import NoChange, starts_now
from kant.insight.suggestions import JobsEnd
from kant.model.event import JobFinished, JobPreempted
from kant.model.units import HOUR, SECOND
from kant.scheduler.cycle import Scheduler
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator


def lacks(harness: Harness, job: str, gone: tuple[str, ...], at: int, ended: bool = True) -> object:
    """What the job lacks on a copy of the state at a time when these jobs have ended, or been stopped."""
    state = thaw(freeze(harness.state))
    for name in gone:
        state.apply(JobFinished(at, name) if ended else JobPreempted(at, name))
    diagnosis = Diagnosis(Scheduler(state, harness.profile), at)
    return diagnosis.missing(state.rows[job])[0]


def waiting(seed: int) -> Harness:
    """Random jobs, with and without a limit, on four nodes of which some GPUs are booked now and later."""
    draw = generator(seed)
    harness = Harness(make_cluster(4, 4, 8, 4), make_profile("fifo", "best-effort"), seed=seed)
    if seed % 2:
        harness.set_queues(make_queue("a", int(draw.integers(4, 12))), make_queue("b", int(draw.integers(4, 12))))
    for i in range(14):
        if i in (3, 8):
            start = harness.now + int(draw.integers(0, 7200)) * SECOND
            node = int(draw.integers(2)) + 2 * (i == 8)
            book(harness, f"r{i}", start, start + 2 * HOUR, (node, int(draw.choice([0b1111, 0b0011, 0b0110]))))
        harness.now += int(draw.integers(1, 600)) * SECOND
        gpus, pods = int(draw.integers(1, 5)), int(draw.integers(1, 3))
        limit = int(draw.choice([-1, 1800, 3600, 10800]))
        limit = limit * SECOND if limit > 0 else -1
        harness.submit(
            make_job(
                f"j{i}", gpus, pods, queue="ab"[int(draw.integers(2))] if seed % 2 else "default",
                preemptible=bool(draw.integers(4)), limit=limit, estimate=max(limit, SECOND), retries=99,
            )
        )  # fmt: skip
        harness.cycle()
    return harness


@pytest.mark.parametrize("seed", range(16))
def test_jobs_that_end_or_stop_give_a_place_that_nobody_has_booked(seed: int) -> None:
    harness = waiting(seed)
    named = 0
    for job in harness.waiting():
        diagnosis = Diagnosis(harness.scheduler, harness.now)
        row = diagnosis.row(job)
        for found in find_suggestions(diagnosis, row, diagnosis.missing(row)[0]):
            if isinstance(found, JobsEnd) and not found.more:
                at = max(found.at, harness.now)
                assert lacks(harness, job, found.jobs, at) is None, (job, found)
                named += 1
        changes = starts_now(diagnosis, row)
        stops = () if isinstance(changes, NoChange) else [one for one in changes if one.stopped and not one.quotas]
        for change in stops:
            gone = tuple(one.job for one in change.stopped)
            assert lacks(harness, job, gone, harness.now, ended=False) is None, (job, change)
            named += 1
        if not stops:
            state = harness.state
            may = tuple(state.ids[other] for other in state.running if state.jobs[other, J_PREEMPTIBLE])
            assert lacks(harness, job, may, harness.now, ended=False) is not None, (job, changes)
    assert named or not harness.waiting()


def test_who_holds_gpus_that_are_booked_gives_no_place_to_a_job_that_runs_into_the_booking() -> None:
    harness = Harness(make_cluster(4, 4), make_profile("fifo", "best-effort"))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b1111))
    harness.submit(make_job("ends", 3, limit=1800 * SECOND, estimate=1800 * SECOND), make_job("stays", 3))
    harness.cycle(0)
    assert harness.nodes_of("ends") == ["n0"]
    harness.submit(make_job("long", 4), make_job("short", 4, limit=3000 * SECOND, estimate=3000 * SECOND))
    harness.cycle(SECOND)
    diagnosis = Diagnosis(harness.scheduler, harness.now)
    for job in ("long", "short"):
        row = diagnosis.row(job)
        (found,) = find_suggestions(diagnosis, row, diagnosis.missing(row)[0])
        assert isinstance(found, JobsEnd) and found.jobs == ("stays",), "short would run into it at half past"
    (change,) = starts_now(diagnosis, diagnosis.row("short"))  # type: ignore[misc]
    assert [one.job for one in change.stopped] == ["ends"], "now it would not"
    (change,) = starts_now(diagnosis, diagnosis.row("long"))  # type: ignore[misc]
    assert [one.job for one in change.stopped] == ["stays"]
