"""Answers: what they learn from their own past, that asking changes nothing, and that a journal tells the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kant.insight.calibration import ExpectedStart, TrackRecord
from kant.insight.eta import expected_starts, median_starts
from kant.insight.eta_calibrator import FEW, EtaCalibrator, calibrated_starts
from kant.model.units import DAY, HOUR
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, parse_profile
from kant.sim.run import RunHooks, simulate
from kant.sim.state_at import state_at
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate


class LineUp:
    """A node of 8 GPUs, jobs that take all of it, and owners who say that they run for an hour."""

    def __init__(self) -> None:
        self.harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
        self.answers = EtaCalibrator(self.harness.scheduler)
        self.harness.after_carrying_out = lambda plan: self.answers.observe(plan.time)
        self.jobs = 0

    def come(self, hours: int) -> str:
        """Two jobs come: one starts, the other waits until it has run for so many hours. Returns the second."""
        for _ in range(2):
            self.harness.submit(
                make_job(f"j{self.jobs}", 8, submit=self.harness.now, estimate=HOUR), runtime=hours * HOUR
            )
            self.jobs += 1
        self.harness.cycle()
        return f"j{self.jobs - 1}"

    def rounds(self, number: int, hours: int) -> None:
        for _ in range(number):
            self.come(hours)
            self.harness.run()

    def told(self, job: str) -> ExpectedStart:
        return self.answers.expected(only=job)[job]


@pytest.mark.parametrize("hours", [1, 3, 7])
def test_it_learns_by_how_much_plans_are_wrong(hours: int) -> None:
    line = LineUp()
    line.rounds(FEW + 5, hours)
    job, now = line.come(hours), line.harness.now
    assert median_starts(line.harness.scheduler)[job] == now + HOUR
    assert line.told(job) == ExpectedStart(now + hours * HOUR, now + hours * HOUR, TrackRecord(5, 5))


def test_p50_and_p90_are_quantiles_of_what_was() -> None:
    line = LineUp()
    for _ in range(8):
        for hours in (1, 1, 2, 2, 2, 2, 2, 5, 5, 9):
            line.rounds(1, hours)
    job, now = line.come(1), line.harness.now
    told = line.told(job)
    assert told.p50 == now + 2 * HOUR
    assert told.p90 in (now + 5 * HOUR, now + 9 * HOUR)
    assert told.earlier is not None and 85 <= 100 * told.earlier.kept / told.earlier.answers <= 97


def test_with_few_starts_it_says_what_the_plans_say() -> None:
    line = LineUp()
    line.rounds(FEW - 1, 3)
    job = line.come(3)
    scheduler = line.harness.scheduler
    assert (
        line.told(job)
        == ExpectedStart(*expected_starts(scheduler)[job])
        == calibrated_starts(scheduler, None, None)[job]
    )
    line.harness.run()
    assert line.told(line.come(3)).earlier == TrackRecord(0, 0), "one more is enough"


def test_a_promise_is_broken_when_its_time_has_passed_and_not_when_the_job_starts_at_last() -> None:
    line = LineUp()
    line.rounds(FEW + 5, 1)
    waits = line.come(30)
    assert line.told(waits).earlier == TrackRecord(5, 5)
    line.harness.now += 2 * HOUR
    line.come(30)
    now = line.harness.now
    assert line.harness.state.rows[waits] in line.harness.state.pending
    hour = line.answers.correct(now, now + HOUR)
    assert hour is not None and hour.earlier == TrackRecord(6, 5)
    line.harness.run()
    now = line.harness.now
    hour = line.answers.correct(now, now + HOUR)
    assert hour is not None and hour.earlier == TrackRecord(9, 5), "three more were asked, and the first counts once"


def test_nobody_knows_when_a_job_that_was_withdrawn_would_have_started() -> None:
    line = LineUp()
    line.rounds(FEW + 5, 1)
    line.harness.cancel(line.come(30))
    line.harness.cycle()
    line.harness.run()
    assert line.told(line.come(1)).earlier == TrackRecord(5, 5)


def observed(journal: Path | None, observer: Callable[[Scheduler], Callable[[int], object]] | None) -> str:
    """The digest of a busy fortnight under EASY backfill with learned run times."""
    easy = builtin_profile("easy")
    text = easy.text + '\n[estimates]\nsource = "learned"\n[simulation]\nestimates = "none"\n'
    profile = parse_profile(text, "learning")
    jobs = generate("helios-venus", gpus=64, load=1.1, days=12, seed=3)
    jobs = jobs.take(jobs.total_gpus <= 32)
    lines: list[bytes] = []
    hooks = RunHooks(journal=lines.append, observer=observer)
    result = simulate(jobs, read_cluster("8x8"), profile, seed=1, until=12 * DAY, hooks=hooks)
    if journal is not None:
        journal.write_bytes(b"".join(lines))
    return str(result.summary["digest"])


def test_asking_changes_nothing_and_a_journal_tells_the_same(tmp_path: Path) -> None:
    seen: list[EtaCalibrator] = []

    def observer(scheduler: Scheduler) -> Callable[[int], object]:
        seen.append(EtaCalibrator(scheduler))
        return seen[0].observe

    path = tmp_path / "journal.jsonl"
    assert observed(path, observer) == observed(None, None)
    assert seen[0].plans > 20
    standing = state_at(path, keep_answers=True)
    assert standing.answers is not None and standing.answers.plans == seen[0].plans
    assert standing.answers.expected() == seen[0].expected()
