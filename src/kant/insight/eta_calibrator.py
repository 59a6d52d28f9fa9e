"""Calibrates expected starts: measures how far off earlier forecasts were, and corrects the next ones accordingly.

A forecast's quantiles (`sim/forecast_starts.py`) are right if the run times and arrivals drawn for its simulated
futures match what will happen. In a new kind of congestion they do not, so the error is measured. When a job with a
kept forecast starts, its actual wait is divided by the forecast P50 and by the forecast P90: two *ratios*. Later
answers are the forecast waits times quantiles of these ratios.

This is conformalised quantile regression with a multiplicative score (Romano, Patterson and Candès, NeurIPS 2019). Jobs
of one queue are far from exchangeable: jobs that wait at one time all start early, or all start late. So in each class
of horizons all quarters of a day weigh the same, however many ratios they have (the pooling of distributions in Dunn,
Wasserman and Ramdas, Distribution-free prediction sets for two-layer hierarchical models, JASA 2023). The quarters of
one jam (a period of congestion) also resemble each other. With fewer than FEW_QUARTERS quarters or FEW_JAMS jams, the
answer comes from the simulated futures alone, and says so.

The calibrator is a fold over the events of a run and the forecasts made: equal inputs give equal answers. Times are
microseconds, ratios thousandths, all integers. `benchmarks/studies/coverage.py` measures how often answers hold.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import accumulate

from kant.cluster.columns import J_STARTED, J_STATUS
from kant.cluster.state import ClusterState
from kant.insight.calibration import (
    FAR,
    Calibration,
    CalibrationState,
    Correction,
    HorizonState,
    OpenAnswer,
    Quarter,
    ahead_of,
    horizon,
)
from kant.insight.expected_start import StartForecast, WaitingJob
from kant.insight.track_record import FEW_JAMS, FEW_QUARTERS
from kant.model.status import JobStatus
from kant.model.units import FOREVER, HOUR

EVERY = HOUR
"""Minimum time (microseconds) between two kept forecasts for jobs that have earlier answers."""

SAMPLE = 16
"""Maximum number of jobs kept per forecast: this many with earlier answers, and as many without."""

QUARTER = 6 * HOUR
"""A quarter of a day in microseconds. All answers of one quarter together weigh as much as those of any other."""

MOST = 64
"""Maximum number of quarters kept for a class of horizons (the latest), and of ratios kept in a quarter (the first)."""

_ONE = 1_000_000
_STARTED = (JobStatus.RUNNING.value, JobStatus.FINISHED.value)


class EtaCalibrator:
    """Follows one state and its forecasts. Call `observe` when all events of one time are applied.

    For jobs with earlier answers, another forecast is kept only after at least `every` microseconds.
    """

    def __init__(self, state: ClusterState, every: int = EVERY) -> None:
        self.state = state
        self.every = every
        self.learned = 0  # changes whenever something is learned or kept
        self._asked = 0
        self._horizons: dict[int, HorizonState] = {}
        self._open: dict[int, list[OpenAnswer]] = {}  # by row, while it waits
        self._due: list[tuple[int, int, OpenAnswer]] = []  # heap: answered P90, number, answer
        self._number = self._jam = 0
        self._seen = state.job_changes.end
        self._next = state.now

    def observe(self, now: int) -> None:
        """Judge the answers that can be judged at `now`."""
        while self._due and self._due[0][0] < now:
            self._judge(heappop(self._due)[2], FOREVER)
        moved = self.state.job_changes.since(self._seen)
        self._seen = self.state.job_changes.end
        for row in moved:
            if row in self._open and row not in self.state.pending:
                self._left(row, self._open.pop(row), now)

    def wants(self, now: int) -> bool:
        """Return whether a new forecast to learn from is due: jobs wait, and the last forecast is long enough ago."""
        return now >= self._next and bool(self.state.pending)

    def calibration(self) -> Calibration:
        """Return the corrections of all classes of horizons that have known ratios."""
        return Calibration({far: _correction(far, own) for far, own in sorted(self._horizons.items())})

    @property
    def is_blank(self) -> bool:
        """Whether nothing has been learned yet."""
        return not self._horizons

    def keep(self, forecast: StartForecast) -> StartForecast:
        """Return the forecast, corrected. Some answers are kept, to learn from them when their jobs start."""
        self._jam += not self._open
        calibration = self.calibration()
        new, old = list[str](), list[str]()
        for name in forecast.jobs:
            row = self.state.rows.get(name, -1)
            if row in self.state.pending:
                (old if row in self._open else new).append(name)
        chosen = _spread(new, self._asked)
        if forecast.now >= self._next:
            self._next = forecast.now + self.every
            chosen += _spread(old, self._asked)
        self._asked += 1
        for name in chosen:
            self._ask(forecast.now, self.state.rows[name], forecast.jobs[name], calibration)
        return calibration.corrected(forecast)

    def _ask(self, now: int, row: int, job: WaitingJob, calibration: Calibration) -> None:
        start = job.start
        if start.p50 is None:
            return
        ahead = ahead_of(now, start.p50), -1 if start.p90 is None else ahead_of(now, start.p90)
        told = calibration.correct(now, start)
        starts = () if told.p50 is None or told.p90 is None else (told.p50, told.p90)
        self._open_again(row, OpenAnswer(now, self._jam, ahead, starts))

    def _open_again(self, row: int, asked: OpenAnswer) -> None:
        """Keep an answer until it can be judged. Judge it now if its job no longer waits."""
        self.learned += 1
        if row not in self.state.pending:
            self._left(row, [asked], int(self.state.jobs[row, J_STARTED]))
            return
        self._open.setdefault(row, []).append(asked)
        if asked.starts:
            self._number += 1
            heappush(self._due, (asked.starts[1], self._number, asked))

    # --- from one state to the next --------------------------------------------------------------------------

    def remember(self) -> CalibrationState:
        """Return all that was learned, for `recall`."""
        asked = {self.state.ids[row]: opened for row, opened in self._open.items()}
        horizons = {far: _moved(own, 0) for far, own in sorted(self._horizons.items())}
        return CalibrationState(horizons, asked, self._asked, self._next, self._jam)

    def recall(self, memory: CalibrationState, later: int = 0, rows: Mapping[str, int] | None = None) -> None:
        """Continue from what an earlier calibrator has learned.

        That calibrator's clock began `later` microseconds before this one's. `rows` maps its job names to rows (None:
        the names are the same). Answers about jobs without a row are dropped.
        """
        rows = self.state.rows if rows is None else rows
        self._asked, self._next, self._jam = memory.asked, memory.next - later, memory.jam
        self._horizons = {far: _moved(own, later) for far, own in memory.horizons.items()}
        for job, opened in memory.open.items():
            row = rows.get(job)
            for answer in opened if row is not None else ():
                starts = tuple(start - later for start in answer.starts)
                self._open_again(row, OpenAnswer(answer.at - later, answer.jam, answer.ahead, starts, answer.judged))  # type: ignore[arg-type]
        self._seen = self.state.job_changes.end
        self.learned += 1

    # --- judging ---------------------------------------------------------------------------------------------

    def _left(self, row: int, opened: list[OpenAnswer], when: int) -> None:
        """Learn from a job that no longer waits. `when` is its start time, if it has started."""
        started = int(self.state.jobs[row, J_STATUS]) in _STARTED
        for asked in opened:
            if not started or when < asked.at:
                asked.judged = True  # the job was withdrawn before it started
                continue
            for which, ahead in enumerate(asked.ahead):
                if ahead > 0:
                    self._learn(asked, which, (when - asked.at) * 1000 // ahead)
            self.learned += 1
            self._judge(asked, when)

    def _learn(self, asked: OpenAnswer, which: int, ratio: int) -> None:
        """Record a `ratio` (permille) for the P50 (`which` = 0) or for the P90 (`which` = 1)."""
        quarters = self._horizons.setdefault(horizon(asked.ahead[0]), HorizonState()).quarters
        own = quarters.setdefault(asked.at // QUARTER, Quarter(asked.jam))
        ratios = (own.p50, own.p90)[which]
        if len(ratios) < MOST:
            insort(ratios, ratio)
        if len(quarters) > MOST:
            del quarters[min(quarters)]

    def _judge(self, asked: OpenAnswer, when: int) -> None:
        """Judge an answer about a job that starts at `when`. FOREVER: it did not start by its P90."""
        if not asked.judged and asked.starts:
            asked.judged = True
            self.learned += 1
            own = self._horizons.setdefault(horizon(asked.ahead[0]), HorizonState())
            own.judged += 1
            own.held += when <= asked.starts[1]
            own.held_p50 += when <= asked.starts[0]


def _correction(far: int, own: HorizonState) -> Correction:
    quarters = [one for one in own.quarters.values() if one.p90]
    known = len(quarters) >= FEW_QUARTERS and len({one.jam for one in quarters}) >= FEW_JAMS
    p50 = _least([one.p50 for one in quarters], 500 * len(quarters)) if known else 1000
    p90 = _least([one.p90 for one in quarters], 900 * (len(quarters) + 1)) if known else 1000
    return Correction(p50, p90 if far >= FAR else max(p90, 1000), own.judged, own.held, own.held_p50, known)


def _least(quarters: list[list[int]], enough: int) -> int:
    """Return the `enough`-permille quantile of the ratios. All quarters weigh the same, split among their ratios."""
    weighed = sorted((ratio, _ONE // len(ratios)) for ratios in quarters for ratio in ratios)
    below = accumulate(weight for _, weight in weighed)
    least = 1000 * enough - len(weighed)  # weights are rounded down
    return next((ratio for (ratio, _), sum_ in zip(weighed, below, strict=True) if sum_ >= least), weighed[-1][0])


def _moved(own: HorizonState, later: int) -> HorizonState:
    """Return a copy with times on a clock that began `later` microseconds later."""
    quarters = {
        at - later // QUARTER: Quarter(one.jam, list(one.p50), list(one.p90)) for at, one in own.quarters.items()
    }
    return HorizonState(quarters, own.judged, own.held, own.held_p50)


def _spread(names: list[str], turn: int) -> list[str]:
    """Return at most SAMPLE of the names, evenly spaced. Consecutive values of `turn` select different names."""
    step = -(-len(names) // SAMPLE)
    return names[turn % step :: step] if step else []
