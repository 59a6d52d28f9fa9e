"""Calibrates expected starts: measures how far off earlier forecasts were, and corrects the next ones accordingly.

A forecast's quantiles (`sim/forecast_starts.py`) are right where its futures are: where the drawn run times and
arrivals match what will happen. In a new kind of congestion they do not. So the error is measured: when a job with a
kept forecast starts, its actual wait over its forecast P50, and over its P90, are two *ratios*. Later answers are the
forecast waits times quantiles of these.

This is conformalised quantile regression with a multiplicative score (Romano, Patterson and Candès, NeurIPS 2019). Jobs
of one queue are far from exchangeable. So the level of the P50, over jobs of similar size that were about as far ahead,
follows the answers' own misses (Gibbs and Candès, Adaptive Conformal Inference, NeurIPS 2021), as in
`cluster/history.py`. A miss counts as soon as the answered time has passed, not when the job finally starts; otherwise
the longest waits would be learned last.

The P90 fails for whole jams: what waits at one time starts early or late together. So jams are what is exchangeable,
here quarters of a day: in each class of horizons all jams weigh the same, however many ratios they have (the pooling of
distributions in Dunn, Wasserman and Ramdas, Distribution-free prediction sets for two-layer hierarchical models, JASA
2023).

The calibrator is a fold over the instants of a run and the forecasts made: equal inputs give equal answers. Times are
microseconds, ratios thousandths, levels millionths, all integers. `benchmarks/studies/coverage.py` measures how often
the answers hold.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import accumulate

from kant.cluster.columns import J_STARTED, J_STATUS
from kant.cluster.history import Window
from kant.cluster.state import ClusterState
from kant.insight.calibration import (
    ANY,
    FAR,
    Calibration,
    CalibrationState,
    CellState,
    Correction,
    OpenAnswer,
    ahead_of,
    cell,
    horizon,
    nearest,
    reach,
    size_of,
)
from kant.insight.expected_start import StartForecast, WaitingJob
from kant.insight.track_record import FEW_JAMS
from kant.model.status import JobStatus
from kant.model.units import FOREVER, HOUR

EVERY = HOUR
"""Minimum time between two forecasts that are kept for jobs with earlier answers."""

SAMPLE = 16
"""Maximum number of jobs kept per forecast among those with earlier answers, and again among new ones."""

WINDOW = 128
"""Number of latest ratios kept per cell."""

FEW = 20
"""A cell with fewer ratios is not used: the nearest with enough is, or else the uncorrected forecast."""

JAM = 6 * HOUR
"""Answers of one such stretch of time count as one."""

MOST = 64
"""The number of the latest jams that are kept for a class of horizons, and of the first ratios of one jam."""

STEP = 10
"""Step size of a level: STEP x q millionths up after a miss at q permille, STEP x (1000 - q) down after a hit."""

HIGHEST_LEVEL = 1_500_000
STATED = (500, 900)
_ONE = 1_000_000
_STARTED = (JobStatus.RUNNING.value, JobStatus.FINISHED.value)


class _Cell:
    """The ratios of the P50 of answers that look about equally far ahead, about jobs of similar size; and the level."""

    __slots__ = ("held", "held_p50", "judged", "level", "ratios")

    def __init__(self) -> None:
        self.ratios = Window(WINDOW)
        self.level = 1000 * STATED[0]
        self.judged = self.held = self.held_p50 = 0

    def is_usable(self) -> bool:
        return len(self.ratios.ordered) >= FEW

    def correction(self) -> Correction:
        ordered = self.ratios.ordered
        rank = -(-self.level * (len(ordered) + 1) // _ONE)
        ratio = ordered[min(max(rank, 1), len(ordered)) - 1]
        return Correction(ratio, self.judged, self.held, self.held_p50)

    def state(self) -> CellState:
        latest = self.ratios.latest[self.ratios.at :] + self.ratios.latest[: self.ratios.at]
        return CellState(latest, self.level, self.judged, self.held, self.held_p50)

    def judge(self, which: int, kept: bool, kept_p50: bool) -> None:
        if which == 0:
            step = STEP * (STATED[0] - 1000 if kept else STATED[0])
            self.level = min(max(self.level + step, 0), HIGHEST_LEVEL)
        else:
            self.judged += 1
            self.held += kept
            self.held_p50 += kept_p50


class EtaCalibrator:
    """Follows one state and the forecasts about it. Call `observe` at the end of every instant or turn.

    Jobs with earlier answers are asked about again after `every` microseconds at least.
    """

    def __init__(self, state: ClusterState, every: int = EVERY) -> None:
        self.state = state
        self.every = every
        self.learned = 0  # changes whenever something is learned or kept
        self._asked = 0
        self._cells: dict[int, _Cell] = {}
        self._jams: dict[int, dict[int, list[int]]] = {}  # sorted ratios of the P90, by class of horizons
        self._open: dict[int, list[OpenAnswer]] = {}  # by row, while it waits
        self._due: list[tuple[int, int, int, OpenAnswer]] = []  # heap: answered start, number, probability, answer
        self._number = 0
        self._seen = state.job_changes.end
        self._next = state.now

    def observe(self, now: int) -> None:
        """Judge the answers that can be judged at `now`."""
        while self._due and self._due[0][0] < now:
            _, _, which, asked = heappop(self._due)
            self._judge(asked, which, FOREVER)
        moved = self.state.job_changes.since(self._seen)
        self._seen = self.state.job_changes.end
        for row in moved:
            if row in self._open and row not in self.state.pending:
                self._left(row, self._open.pop(row), now)

    def wants(self, now: int) -> bool:
        """Return whether a forecast to learn from is due: jobs wait, and the last was long enough ago."""
        return now >= self._next and bool(self.state.pending)

    def calibration(self) -> Calibration:
        """Return the corrections of the cells, and the ratios of the P90, that have enough to go by."""
        corrections = {at: own.correction() for at, own in sorted(self._cells.items()) if own.is_usable()}
        ratios = {far: _of_jams(far, jams) for far, jams in sorted(self._jams.items()) if len(jams) >= FEW_JAMS}
        return Calibration(corrections, ratios)

    @property
    def is_blank(self) -> bool:
        """Whether nothing has been learned yet."""
        return not self._cells

    def keep(self, forecast: StartForecast) -> StartForecast:
        """Return the forecast, corrected. For some of its jobs it is kept, to learn from when they start."""
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
        used = nearest(calibration.corrections, now, start, job.gpus)
        better = calibration.correct(now, start, job.gpus)
        starts = () if used is None or better.p50 is None or better.p90 is None else (better.p50, better.p90)
        own = cell(reach(start.p50 - now), size_of(job.gpus))
        asked = OpenAnswer(now, ahead, starts, -1 if used is None else used, own)
        self._open_again(row, asked)

    def _open_again(self, row: int, asked: OpenAnswer) -> None:
        """Keep an answer until it can be judged; judge it now if the job has left the queue."""
        self.learned += 1
        if row not in self.state.pending:
            self._left(row, [asked], int(self.state.jobs[row, J_STARTED]))
            return
        self._open.setdefault(row, []).append(asked)
        for which, promised in enumerate(asked.starts):
            self._number += 1
            heappush(self._due, (promised, self._number, which, asked))

    # --- from one state to the next --------------------------------------------------------------------------

    def remember(self) -> CalibrationState:
        """Return all that was learned, for `recall`."""
        cells = {at: own.state() for at, own in sorted(self._cells.items())}
        asked = {self.state.ids[row]: opened for row, opened in self._open.items()}
        jams = {far: {jam: list(ratios) for jam, ratios in own.items()} for far, own in sorted(self._jams.items())}
        return CalibrationState(cells, jams, asked, self._asked, self._next)

    def recall(self, memory: CalibrationState, later: int = 0, rows: Mapping[str, int] | None = None) -> None:
        """Continue from what an earlier calibrator has learned.

        Its clock began `later` microseconds before this one. `rows` maps the job names that it used to rows (None: the
        names are equal); its answers about other jobs are dropped.
        """
        rows = self.state.rows if rows is None else rows
        self._asked, self._next = memory.asked, memory.next - later
        for at, known in memory.cells.items():
            own = self._cells[at] = _Cell()
            for ratio in known.ratios:
                own.ratios.add(ratio)
            own.level, own.judged, own.held, own.held_p50 = known.level, known.judged, known.held, known.held_p50
        self._jams = {
            far: {jam - later // JAM: list(ratios) for jam, ratios in jams.items()} for far, jams in memory.jams.items()
        }
        for job, opened in memory.open.items():
            row = rows.get(job)
            for answer in opened if row is not None else ():
                starts = tuple(start - later for start in answer.starts)
                again = OpenAnswer(answer.at - later, answer.ahead, starts, answer.cell, answer.own, answer.judged)
                self._open_again(row, again)  # type: ignore[arg-type]
        self._seen = self.state.job_changes.end
        self.learned += 1

    # --- judging ---------------------------------------------------------------------------------------------

    def _left(self, row: int, opened: list[OpenAnswer], when: int) -> None:
        """Learn from a job that has left the queue; `when` is its start if it has started."""
        started = int(self.state.jobs[row, J_STATUS]) in _STARTED
        for asked in opened:
            if not started or when < asked.at:
                asked.judged = (1 << len(STATED)) - 1  # the job was withdrawn before it started
                continue
            for at in (asked.own, asked.own - asked.own % (ANY + 1) + ANY):
                self._cells.setdefault(at, _Cell()).ratios.add((when - asked.at) * 1000 // asked.ahead[0])
            if asked.ahead[1] > 0:
                self._learn(horizon(asked.ahead[0]), asked.at // JAM, (when - asked.at) * 1000 // asked.ahead[1])
            self.learned += 1
            for which in range(len(asked.starts)):
                self._judge(asked, which, when)

    def _learn(self, far: int, jam: int, ratio: int) -> None:
        """Note a ratio of the P90."""
        jams = self._jams.setdefault(far, {})
        own = jams.setdefault(jam, [])
        if len(own) < MOST:
            insort(own, ratio)
        if len(jams) > MOST:
            del jams[min(jams)]

    def _judge(self, asked: OpenAnswer, which: int, when: int) -> None:
        """Judge one of the starts of an answer about a job that starts at `when`, or after all of them (FOREVER)."""
        if asked.cell in self._cells and not asked.judged >> which & 1:
            asked.judged |= 1 << which
            self.learned += 1
            self._cells[asked.cell].judge(which, when <= asked.starts[which], when <= asked.starts[0])


def _of_jams(far: int, jams: Mapping[int, list[int]]) -> int:
    """Return the ratio (permille) of the P90 in a class of horizons: nine tenths of its jams and one more lie below."""
    weighed = sorted((ratio, _ONE // len(ratios)) for ratios in jams.values() for ratio in ratios)
    below = accumulate(weight for _, weight in weighed)
    enough = 1000 * STATED[1] * (len(jams) + 1) - len(weighed)  # weights are rounded down
    found = next((ratio for (ratio, _), sum_ in zip(weighed, below, strict=True) if sum_ >= enough), weighed[-1][0])
    return found if far >= FAR else max(found, 1000)


def _spread(names: list[str], turn: int) -> list[str]:
    """Return at most SAMPLE of the names, evenly spaced, different ones in each turn."""
    step = -(-len(names) // SAMPLE)
    return names[turn % step :: step] if step else []
