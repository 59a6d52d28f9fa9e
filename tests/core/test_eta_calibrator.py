"""The calibration of forecasts: what it learns from their past, and that a journal tells the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kant.insight.calibration import FAR, HORIZONS, Correction, OpenAnswer, Quarter, horizon
from kant.insight.eta_calibrator import MOST, QUARTER, EtaCalibrator
from kant.insight.expected_start import ExpectedStart, TrackRecord
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.insight.track_record import FEW_JAMS, FEW_QUARTERS, track_record
from kant.live.journal_walk import end_of
from kant.model.units import DAY, HOUR
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts
from kant.sim.run import RunHooks, simulate
from kant.sim.state_at import SAMPLE_FUTURES, SAMPLES, state_at
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate


class LineUp:
    """A node of 8 GPUs, jobs that take all of it, and owners who say that they run for an hour.

    Forecasts believe them each time: they know of no past.
    """

    def __init__(self) -> None:
        self.harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
        self.answers = EtaCalibrator(self.harness.state)
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

    def rounds(self, number: int, hours: int, jam: int = 0) -> None:
        """So many rounds, which begin at multiples of `jam`."""
        for _ in range(number):
            if jam:
                self.harness.now += -self.harness.now % jam
            self.come(hours)
            self.ask()
            self.harness.run()

    def ask(self) -> dict[str, ExpectedStart]:
        """What is answered now, of which some is kept."""
        forecast = forecast_starts(moment_of(self.harness.scheduler, PastJobs(), self.harness.now))
        return {job: row.start for job, row in self.answers.keep(forecast).jobs.items()}


def times(start: ExpectedStart) -> tuple[int | None, int | None]:
    return start.p50, start.p90


@pytest.mark.parametrize("hours", [1, 3, 7])
def test_it_learns_by_how_much_forecasts_are_wrong(hours: int) -> None:
    line = LineUp()
    line.rounds(FEW_QUARTERS, hours, QUARTER)
    job, now = line.come(hours), line.harness.now
    told = line.ask()[job]
    assert times(told) == (now + hours * HOUR, now + hours * HOUR)
    held = FEW_QUARTERS if hours == 1 else 0
    assert told.earlier == TrackRecord(FEW_QUARTERS, held, held, True) and told.basis is not None


def test_p50_and_p90_are_quantiles_of_what_was() -> None:
    line = LineUp()
    for _ in range(4):
        for hours in (1, 1, 2, 2, 2, 2, 2, 5, 5, 9):
            line.rounds(1, hours, 2 * QUARTER)
    job, now = line.come(1), line.harness.now
    told = line.ask()[job]
    assert told.p50 == now + 2 * HOUR
    assert told.p90 in (now + 5 * HOUR, now + 9 * HOUR)
    assert told.earlier is not None and 80 <= 100 * told.earlier.kept / told.earlier.answers <= 97
    assert 45 <= 100 * told.earlier.kept_p50 / told.earlier.answers <= 75, "two hours are 70 % of what was"


RATIOS = st.lists(st.integers(1, 1999), min_size=1, max_size=6)
QUARTERS = st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 5), RATIOS, RATIOS), max_size=12)


def answer(quarter: int, jam: int, far: int = 0) -> OpenAnswer:
    """One of a class of horizons."""
    return OpenAnswer(quarter * QUARTER, jam, ((0, *HORIZONS)[far] + 1, 1), ())


@example({at: (at, [1500], [500]) for at in range(9)}, FAR)
@example({at: (at, [500], [500]) for at in range(9)}, FAR - 1)
@given(QUARTERS, st.integers(0, len(HORIZONS)))
def test_answers_are_those_of_one_quarter_drawn_among_those_seen(
    seen: dict[int, tuple[int, list[int], list[int]]], far: int
) -> None:
    """However many answers a quarter has: of the shares of each one's ratios that lie below, the mean is a half or more
    for the P50, with one above all of them nine tenths or more for the P90, and no smaller ratio has as much."""
    answers = EtaCalibrator(Harness(make_cluster(8), make_profile("fifo", "strict")).state)
    for at, (jam, *both) in seen.items():
        for which, ratios in enumerate(both):
            for ratio in ratios:
                answers._learn(answer(at, jam, far), which, ratio)

    def wanted(which: int, share: float, more: int) -> int:
        own = [both[which] for _, *both in seen.values()]
        every = sorted(ratio for ratios in own for ratio in ratios)
        mean = {at: sum(sum(r <= at for r in each) / len(each) for each in own) / (len(own) + more) for at in every}
        return next((at for at in every if mean[at] >= share - 1e-5), every[-1])

    found = answers.calibration().corrections
    if not seen:
        assert found == {}
    elif len(seen) < FEW_QUARTERS or len({jam for jam, *_ in seen.values()}) < FEW_JAMS:
        assert found == {far: Correction(1000, 1000, 0, 0, 0, False)}
    else:
        p90 = wanted(1, 0.9, 1)
        assert found == {far: Correction(wanted(0, 0.5, 0), p90 if far >= FAR else max(p90, 1000), 0, 0, 0, True)}
    said = (0, *HORIZONS)[far] + 1
    told = answers.calibration().correct(0, ExpectedStart(said, said))
    assert told.p50 is not None and told.p90 is not None and told.p50 <= told.p90


def test_of_quarters_the_latest_are_kept_and_of_one_the_first_answers() -> None:
    line = LineUp()
    for ratio in range(MOST + 1):
        line.answers._learn(answer(7, 3), 1, ratio)
    assert line.answers.remember().horizons[0].quarters == {7: Quarter(3, [], list(range(MOST)))}
    for quarter in range(8, 8 + MOST):
        line.answers._learn(answer(quarter, 4), 0, 1)
    assert sorted(line.answers.remember().horizons[0].quarters) == list(range(8, 8 + MOST))
    other = EtaCalibrator(line.harness.state)
    other.recall(line.answers.remember(), later=3 * QUARTER + HOUR)
    assert sorted(other.remember().horizons[0].quarters) == list(range(5, 5 + MOST)), "on the clock of the new state"
    assert [horizon(at) for at in (0, *HORIZONS, HORIZONS[-1] + 1)] == [0, 0, 1, 2, 3, 4]


def test_a_jam_lasts_until_nobody_waits_who_was_asked_about() -> None:
    line = LineUp()
    first, second = line.come(9), line.come(9)
    for _ in range(3):
        line.ask()
        line.harness.now += HOUR
    assert {one.jam for one in line.answers.remember().open[first]} == {1}
    line.harness.run(until=19 * HOUR)
    assert list(line.answers.remember().open) == [second]
    line.ask()
    assert {one.jam for one in line.answers.remember().open[second]} == {1}
    line.harness.run()
    later = line.come(1)
    line.ask()
    assert {one.jam for one in line.answers.remember().open[later]} == {2}


def test_with_few_jams_it_says_what_the_forecast_says() -> None:
    line = LineUp()
    job = line.come(3)
    assert line.ask()[job].earlier is None
    line.harness.run()
    line.rounds(FEW_QUARTERS - 2, 3, QUARTER)
    line.harness.now += -line.harness.now % QUARTER
    job = line.come(3)
    told = line.ask()[job]
    assert times(told) == (line.harness.now + HOUR, line.harness.now + HOUR)
    assert told.earlier == TrackRecord(FEW_QUARTERS - 1, 0, 0, False)
    line.harness.run()
    job = line.come(3)
    assert line.ask()[job].earlier == TrackRecord(FEW_QUARTERS, 0, 0, True), "one more is enough"


def test_a_promise_is_broken_when_its_time_has_passed_and_not_when_the_job_starts_at_last() -> None:
    line = LineUp()
    line.rounds(FEW_QUARTERS, 1, QUARTER)
    waits = line.come(30)
    assert line.ask()[waits].earlier == TrackRecord(5, 5, 5, True)
    line.harness.now += 2 * HOUR
    line.answers.observe(line.harness.now)
    (correction,) = line.answers.calibration().corrections.values()
    assert (correction.answers, correction.kept, correction.kept_p50) == (6, 5, 5)
    line.harness.run()
    (correction,) = line.answers.calibration().corrections.values()
    assert (correction.answers, correction.kept) == (6, 5), "it counts once"


def test_nobody_knows_when_a_job_that_was_withdrawn_would_have_started() -> None:
    line = LineUp()
    line.rounds(FEW_QUARTERS, 1, QUARTER)
    job = line.come(30)
    line.ask()
    line.harness.cancel(job)
    line.harness.cycle()
    line.harness.run()
    assert line.ask() == {}
    assert [own.answers for own in line.answers.calibration().corrections.values()] == [FEW_QUARTERS]


def test_another_calibrator_goes_on_with_what_one_has_learned() -> None:
    line = LineUp()
    line.rounds(FEW_QUARTERS, 3, QUARTER)
    job = line.come(3)
    line.ask()
    other = EtaCalibrator(line.harness.state)
    other.recall(line.answers.remember())
    assert other.remember() == line.answers.remember() and job in other.remember().open
    assert other.calibration() == line.answers.calibration() != EtaCalibrator(line.harness.state).calibration()


def observed(journal: Path | None, observer: Callable[[Scheduler], Callable[[int], object]] | None) -> str:
    """The digest of some busy days under EASY backfill, where nobody says how long jobs run."""
    jobs = generate("helios-venus", gpus=32, load=1.1, days=5, seed=3)
    jobs = jobs.take(jobs.total_gpus <= 16)
    lines: list[bytes] = []
    hooks = RunHooks(journal=lines.append, observer=observer)
    result = simulate(jobs, read_cluster("4x8"), builtin_profile("kant"), seed=1, until=5 * DAY, hooks=hooks)
    if journal is not None:
        journal.write_bytes(b"".join(lines))
    return str(result.summary["digest"])


def test_asking_changes_nothing_and_a_journal_tells_the_same(tmp_path: Path) -> None:
    seen: list[EtaCalibrator] = []

    def observer(scheduler: Scheduler) -> Callable[[int], object]:
        past = PastJobs()
        seen.append(EtaCalibrator(scheduler.state, ended // SAMPLES))

        def look(now: int) -> None:
            past.observe(scheduler.state)
            seen[0].observe(now)
            if seen[0].wants(now):
                seen[0].keep(forecast_starts(moment_of(scheduler, past, now), futures=SAMPLE_FUTURES, bare=True))

        return look

    path, ended = tmp_path / "journal.jsonl", 0
    assert observed(path, None) == observed(None, None)
    ended = end_of(path)
    assert observed(None, observer) == observed(None, None)
    rebuilt = state_at(path, keep_answers=True)
    assert rebuilt.answers is not None and rebuilt.answers.remember().asked == seen[0].remember().asked > 5
    assert rebuilt.answers.calibration() == seen[0].calibration()


def test_the_record_has_the_share_of_each_quantile() -> None:
    assert track_record(8, 6, 2).endswith("the P90 held for 75 %, the P50 for 25 %") and track_record(0, 0, 0) == ""
    few = "; not calibrated: fewer than 3 congestions, or 5 quarters of a day, had such waits"
    assert track_record(8, 6, 2, False) == track_record(8, 6, 2) + few
