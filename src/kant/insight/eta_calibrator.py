"""Calibrates expected starts: measures how far off earlier answers were, and corrects the next ones by that.

A plan (`eta.py`) takes all run times as exact and expects no later jobs, so its times are no quantiles of the start.
A plan of P90 run times is too late; a plan of medians is too early in a burst, and jobs that come later may go first.
The error is measured, not modelled. From time to time a plan of median run times is made, and its times are kept for
some of the waiting jobs. When one of them starts, its actual wait over its planned wait is a *ratio*. The next answer
is the planned wait times a quantile of the latest ratios of plans that looked about as far ahead.

This is split conformal prediction with a normalised score (Lei et al., JASA 2018). The jobs of one queue are far from
exchangeable, so the levels of the quantiles follow the answers' own misses (Gibbs and Candès, Adaptive Conformal
Inference, NeurIPS 2021), as in `cluster/history.py`. A miss counts as soon as the answered time has passed, not when
the job starts at last; otherwise the longest waits of a jam would be learned last.

The calibrator is a fold over the instants of a run: equal events give equal answers. Times are microseconds, ratios
thousandths, levels millionths, all integers. `benchmarks/studies/coverage.py` measures how often the answers hold. The
estimator was chosen on Philly under `kant` and `easy`, and on three weeks drawn after Helios Venus under `kant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from kant.cluster.columns import J_STARTED, J_STATUS
from kant.cluster.history import Window
from kant.insight.calibration import (
    NEAR,
    Calibration,
    CalibrationState,
    Correction,
    ExpectedStart,
    HorizonState,
    OpenAnswer,
    nearest,
    reach,
)
from kant.insight.cooperative import OutdatedError, Task, TaskRun, cooperative, run_to_end
from kant.insight.eta import median_starts
from kant.model.status import JobStatus
from kant.model.units import HOUR
from kant.scheduler.cycle import Scheduler

EVERY = HOUR
"""The least time between two plans that are made to learn from."""

MANY = 1024
"""With this many waiting jobs plans are made half as often, with twice as many a third as often, and so on."""

SAMPLE = 16
"""Jobs whose planned start is remembered of one plan, besides those that have just come."""

WINDOW = 256
"""Latest ratios that are kept of one horizon."""

FEW = 20
"""A horizon with fewer ratios is not used: the nearest with enough is, or else the plain plans."""

STEP = 10
"""How fast levels move: by STEP x q millionths after a miss at q permille, by STEP x (1000 - q) after a hit."""

JOBS_A_STEP = 32
"""Jobs that `EtaCalibrator.observe_step` plans at a time."""

HIGHEST_LEVEL = 1_500_000
STATED = (500, 900)
_ONE = 1_000_000
_STARTED = (JobStatus.RUNNING.value, JobStatus.FINISHED.value)


class _Horizon:
    """The ratios and levels of answers that look about equally far ahead."""

    __slots__ = ("held", "judged", "levels", "ratios")

    def __init__(self) -> None:
        self.ratios = Window(WINDOW)
        self.levels = [permille * 1000 for permille in STATED]
        self.judged = self.held = 0

    def ratio(self, which: int) -> int:
        """The ratio (permille) at the level of a stated probability. There is at least one ratio."""
        ordered = self.ratios.ordered
        rank = -(-self.levels[which] * (len(ordered) + 1) // _ONE)
        return ordered[min(max(rank, 1), len(ordered)) - 1]

    def correction(self) -> Correction:
        return Correction(self.ratio(0), self.ratio(len(STATED) - 1), self.judged, self.held)

    def known(self) -> HorizonState:
        oldest = self.ratios.at
        ratios = self.ratios.latest[oldest:] + self.ratios.latest[:oldest]
        return HorizonState(ratios, list(self.levels), self.judged, self.held)

    def judge(self, which: int, kept: bool) -> None:
        permille = STATED[which]
        step = STEP * (permille - 1000 if kept else permille)
        self.levels[which] = min(max(self.levels[which] + step, 0), HIGHEST_LEVEL)
        if which == len(STATED) - 1:
            self.judged += 1
            self.held += kept


class EtaCalibrator:
    """Follows the state of one scheduler, and calibrates its expected starts.

    Call `observe` at the end of every instant, after its plan is applied; or `observe_step`, beside other work.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.plans = 0
        self.learned = 0  # changes whenever something is learned or asked
        self._horizons: dict[int, _Horizon] = {}
        self._open: dict[int, list[OpenAnswer]] = {}  # by row, while it waits
        self._due: list[tuple[int, int, int, OpenAnswer]] = []  # heap: answered start, number, probability, answer
        self._number = 0
        self._rows = len(self.state.ids)
        self._seen = self.state.job_changes.end
        self._next = self.state.now
        self._under_way: TaskRun[None] | None = None

    def observe(self, now: int) -> None:
        """Judge what can be judged at `now`, and ask again if jobs have come to wait."""
        self._judge_all(now)
        new = self._new()
        if new and now >= self._next:
            run_to_end(self._asking(now, new))

    def observe_step(self, now: int, may_plan: bool = True) -> None:
        """Judge what can be judged at `now`; with `may_plan`, plan JOBS_A_STEP jobs more of the plan under way."""
        self._judge_all(now)
        if not may_plan:
            return
        if self._under_way is None:
            new = self._new()
            if not new or now < self._next:
                return
            self._under_way = TaskRun(self._asking(now, new))
        left = iter(range(JOBS_A_STEP - 1))
        try:
            if self._under_way.advance(lambda: next(left, None) is not None):
                self._under_way = None
        except OutdatedError:
            self._under_way = None

    def _new(self) -> list[int]:
        """The jobs that have come to wait since the last call."""
        new = [row for row in range(self._rows, len(self.state.ids)) if row in self.state.pending]
        self._rows = len(self.state.ids)
        return new

    def expected(self, now: int | None = None, only: str = "") -> dict[str, ExpectedStart]:
        """The expected start of every waiting job (or of those up to `only`), in order."""
        return run_to_end(self.calibration().expected_starts_task(self.scheduler, now, only))

    def correct(self, now: int, start: int) -> ExpectedStart | None:
        """The answer at `now` where the plan of median run times says `start`; None while too little is known."""
        return self.calibration().correct(now, start)

    def calibration(self) -> Calibration:
        """The corrections of the horizons that have enough ratios."""
        horizons = sorted(self._horizons.items())
        return Calibration({at: own.correction() for at, own in horizons if len(own.ratios.ordered) >= FEW})

    @property
    def is_blank(self) -> bool:
        """Whether nothing has been learned yet."""
        return not self._horizons

    # --- from one state to the next --------------------------------------------------------------------------

    def remember(self) -> CalibrationState:
        """All that was learned, for `recall`."""
        horizons = {
            at: HorizonState(
                own.ratios.latest[own.ratios.at :] + own.ratios.latest[: own.ratios.at],
                own.levels,
                own.judged,
                own.held,
            )
            for at, own in sorted(self._horizons.items())
        }
        asked = {self.state.ids[row]: opened for row, opened in self._open.items()}
        return CalibrationState(horizons, asked, self.plans, self._next)

    def recall(self, memory: CalibrationState, later: int = 0, rows: Mapping[str, int] | None = None) -> None:
        """Go on with what an earlier calibrator has learned. Jobs that already wait are not new.

        Its clock began `later` microseconds before this one. `rows` maps the names that it knew jobs by to rows (None:
        the names are equal); its answers about other jobs are dropped.
        """
        rows = self.state.rows if rows is None else rows
        self.plans, self._next = memory.plans, memory.next - later
        for at, known in memory.horizons.items():
            own = self._horizons[at] = _Horizon()
            for ratio in known.ratios:
                own.ratios.add(ratio)
            own.levels, own.judged, own.held = list(known.levels), known.judged, known.held
        for job, opened in memory.open.items():
            row = rows.get(job)
            for told in opened if row is not None else ():
                starts = tuple(start - later for start in told.starts)
                self._keep(row, OpenAnswer(told.at - later, told.ahead, starts, told.horizon, told.judged))  # type: ignore[arg-type]
        self._rows, self._seen = len(self.state.ids), self.state.job_changes.end
        self.learned += 1

    # --- asking ----------------------------------------------------------------------------------------------

    def _asking(self, now: int, new: list[int]) -> Task[None]:
        """Remember the planned starts of the `new` jobs and of some others, evenly over the order."""
        self._next = now + EVERY * (1 + len(self.state.pending) // MANY)
        state, calibration = self.state, self.calibration()
        starts = yield from median_starts.task(self.scheduler, now)
        step = -(-len(starts) // SAMPLE)
        chosen = {state.ids[row] for row in new}
        chosen.update(list(starts)[self.plans % step :: step] if step else ())
        self.plans += 1
        self.learned += 1
        for job, start in starts.items():
            if job not in chosen or start is None:
                continue
            ahead = max(start - now, NEAR)
            told = calibration.correct(now, start)
            promised = () if told is None or told.p50 is None or told.p90 is None else (told.p50, told.p90)
            horizon = nearest(calibration.lessons, ahead) if told is not None else -1
            self._keep(state.rows[job], OpenAnswer(now, ahead, promised, horizon))

    def _keep(self, row: int, asked: OpenAnswer) -> None:
        """Keep an answer to judge it when its time has come; judge it now if the job has left the queue."""
        if row not in self.state.pending:
            self._left(row, [asked], int(self.state.jobs[row, J_STARTED]))
            return
        self._open.setdefault(row, []).append(asked)
        for which, promised in enumerate(asked.starts):
            self._number += 1
            heappush(self._due, (promised, self._number, which, asked))

    # --- judging ---------------------------------------------------------------------------------------------

    def _judge_all(self, now: int) -> None:
        while self._due and self._due[0][0] < now:
            _, _, which, asked = heappop(self._due)
            self._judge(asked, which, kept=False)
        self._settle(now)

    def _settle(self, now: int) -> None:
        """Learn from the jobs that have started; forget those that have left."""
        state = self.state
        moved = state.job_changes.since(self._seen)
        self._seen = state.job_changes.end
        for row in list(self._open) if moved is None else moved:
            if row in self._open and row not in state.pending:
                self._left(row, self._open.pop(row), now)

    def _left(self, row: int, opened: list[OpenAnswer], when: int) -> None:
        """Learn from a job that has left the queue, and started at `when` if it has started."""
        started = int(self.state.jobs[row, J_STATUS]) in _STARTED
        for asked in opened:
            if not started or when < asked.at:
                asked.judged = (1 << len(STATED)) - 1  # the job was withdrawn before it started
                continue
            own = self._horizons.setdefault(reach(asked.ahead), _Horizon())
            own.ratios.add((when - asked.at) * 1000 // asked.ahead)
            self.learned += 1
            for which, promised in enumerate(asked.starts):
                self._judge(asked, which, kept=when <= promised)

    def _judge(self, asked: OpenAnswer, which: int, kept: bool) -> None:
        if asked.horizon in self._horizons and not asked.judged >> which & 1:
            asked.judged |= 1 << which
            self.learned += 1
            self._horizons[asked.horizon].judge(which, kept)


Learned = EtaCalibrator | Calibration | None
"""What calibrates answers: a calibrator, the corrections of another one, or nothing."""


@cooperative
def calibrated_starts(
    scheduler: Scheduler, learned: Learned, now: int | None, only: str = ""
) -> Task[dict[str, ExpectedStart]]:
    """The expected start of every waiting job (or of those up to `only`), in order.

    Where nothing, or too little, is `learned`, the times are those of the plans (`eta.expected_starts`).
    """
    calibration = learned.calibration() if isinstance(learned, EtaCalibrator) else learned or Calibration()
    return calibration.expected_starts_task(scheduler, now, only)
