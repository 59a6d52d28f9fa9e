"""What became of earlier answers to "when will it start?", and what that teaches the next ones.

A plan (`eta.py`) takes all run times at their word and nobody to come later, so its times are no quantiles of a start:
made of P90 run times alone it is too late, made of medians too early in a burst, and jobs that come later go before.
How far off it is gets measured instead of modelled. From time to time the plan of median run times is made, and what it
says is kept for some of the waiting jobs. When one of them starts, the time that it took over the time that was planned
is a *ratio*. The next answer is what the plan says, times a quantile of the latest ratios of plans that looked about as
far ahead.

That is split conformal prediction with a normalised score (Lei et al., JASA 2018), and as the jobs of one queue are far
from exchangeable the levels at which quantiles are read off follow the answers' own misses (Gibbs and Candès, Adaptive
Conformal Inference, NeurIPS 2021), as in `cluster/history.py`. A miss counts when the promised time has passed, not
when the job starts at last: in a jam those that wait longest would be heard of last.

A fold over the instants of a run: the same events give the same answers. Integers only: times are microseconds, ratios
thousandths, levels millionths. `benchmarks/studies/coverage.py` measures how often the answers hold; the estimator
was chosen on Philly under `kant` and `easy` and on three weeks drawn after Helios Venus under `kant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from kant.cluster.columns import J_STARTED, J_STATUS
from kant.cluster.history import Window
from kant.model.status import JobStatus
from kant.model.units import HOUR
from kant.scheduler.calibration import NEAR, Answer, Calibration, Known, Lesson, Memory, Open, nearest, reach
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import median_steps
from kant.scheduler.steps import Outdated, Steps, Work, at_once

EVERY = HOUR
"""The least time between two plans that are made to learn from them."""

MANY = 1024
"""With so many waiting jobs plans are made half as often, with twice as many a third as often, and so on."""

SAMPLE = 16
"""Of how many jobs, besides those that have just come, such a plan is remembered."""

WINDOW = 256
"""Latest ratios that answers of one horizon are read off."""

FEW = 20
"""With fewer ratios than this a horizon says nothing: the nearest that has as many does, and else the plans do."""

STEP = 10
"""How fast levels move: by STEP x q millionths after a miss at q permille, by STEP x (1000 - q) after a hit."""

A_LOOK = 32
"""Jobs for which a plan that is made beside other work (`Answers.look`) finds a start at a time."""

HIGHEST_LEVEL = 1_500_000
STATED = (500, 900)
_ONE = 1_000_000
_STARTED = (JobStatus.RUNNING.value, JobStatus.FINISHED.value)


class _Horizon:
    """What is known of answers that look about equally far ahead."""

    __slots__ = ("held", "judged", "levels", "ratios")

    def __init__(self) -> None:
        self.ratios = Window(WINDOW)
        self.levels = [permille * 1000 for permille in STATED]
        self.judged = self.held = 0

    def ratio(self, which: int) -> int:
        """The ratio (permille) at the level of a stated probability. There is one at least."""
        ordered = self.ratios.ordered
        rank = -(-self.levels[which] * (len(ordered) + 1) // _ONE)
        return ordered[min(max(rank, 1), len(ordered)) - 1]

    def lesson(self) -> Lesson:
        return Lesson(self.ratio(0), self.ratio(len(STATED) - 1), self.judged, self.held)

    def known(self) -> Known:
        oldest = self.ratios.at
        ratios = self.ratios.latest[oldest:] + self.ratios.latest[:oldest]
        return Known(ratios, list(self.levels), self.judged, self.held)

    def judge(self, which: int, kept: bool) -> None:
        permille = STATED[which]
        step = STEP * (permille - 1000 if kept else permille)
        self.levels[which] = min(max(self.levels[which] + step, 0), HIGHEST_LEVEL)
        if which == len(STATED) - 1:
            self.judged += 1
            self.held += kept


class Answers:
    """Follows the state of one scheduler.

    Call `observe` at the end of every instant, when its plan is carried out; or `look`, beside other work.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.plans = 0
        self.learned = 0  # is another when something has been learned or asked
        self._horizons: dict[int, _Horizon] = {}
        self._open: dict[int, list[Open]] = {}  # by row, while it waits
        self._due: list[tuple[int, int, int, Open]] = []  # heap: promised start, number, probability, answer
        self._number = 0
        self._rows = len(self.state.ids)
        self._seen = self.state.moved.end
        self._next = self.state.now
        self._under_way: Work[None] | None = None

    def observe(self, now: int) -> None:
        """Judge what can be judged at `now`, and ask again when somebody has come to wait."""
        self._judge_all(now)
        new = self._new()
        if new and now >= self._next:
            at_once(self._asking(now, new))

    def look(self, now: int, may_plan: bool = True) -> None:
        """The same in pieces: a plan is made over as many calls as it takes, A_LOOK jobs in each that `may_plan`."""
        self._judge_all(now)
        if not may_plan:
            return
        if self._under_way is None:
            new = self._new()
            if not new or now < self._next:
                return
            self._under_way = Work(self._asking(now, new))
        left = iter(range(A_LOOK - 1))
        try:
            if self._under_way.go_on(lambda: next(left, None) is not None):
                self._under_way = None
        except Outdated:
            self._under_way = None

    def _new(self) -> list[int]:
        """Who has come to wait since the last time."""
        new = [row for row in range(self._rows, len(self.state.ids)) if row in self.state.pending]
        self._rows = len(self.state.ids)
        return new

    def expected(self, now: int | None = None, only: str = "") -> dict[str, Answer]:
        """When every waiting job (or those up to job `only`) is expected to start, first in order first."""
        return at_once(self.calibration().expecting(self.scheduler, now, only))

    def told(self, now: int, start: int) -> Answer | None:
        """What is answered at `now` where the plan of `median_starts` says `start`; None while too little is known."""
        return self.calibration().told(now, start)

    def calibration(self) -> Calibration:
        """What has been learned: of the horizons that know enough."""
        horizons = sorted(self._horizons.items())
        return Calibration({at: own.lesson() for at, own in horizons if len(own.ratios.ordered) >= FEW})

    @property
    def is_blank(self) -> bool:
        """Whether nothing has been learned yet."""
        return not self._horizons

    # --- from one state to the next --------------------------------------------------------------------------

    def remember(self) -> Memory:
        """All that was learned here."""
        horizons = {
            at: Known(
                own.ratios.latest[own.ratios.at :] + own.ratios.latest[: own.ratios.at],
                own.levels,
                own.judged,
                own.held,
            )
            for at, own in sorted(self._horizons.items())
        }
        asked = {self.state.ids[row]: opened for row, opened in self._open.items()}
        return Memory(horizons, asked, self.plans, self._next)

    def recall(self, memory: Memory, later: int = 0, rows: Mapping[str, int] | None = None) -> None:
        """Go on with what another has learned. Whoever is there already has not come to wait just now.

        Its clock began `later` microseconds before ours. `rows` has the jobs by the names that it knew them by
        (None: the same names); what it had told of others nobody will know.
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
                self._keep(row, Open(told.at - later, told.ahead, starts, told.horizon, told.judged))  # type: ignore[arg-type]
        self._rows, self._seen = len(self.state.ids), self.state.moved.end
        self.learned += 1

    # --- asking ----------------------------------------------------------------------------------------------

    def _asking(self, now: int, new: list[int]) -> Steps[None]:
        """Remember what a plan says of the `new` jobs and of some of the others, evenly over the order."""
        self._next = now + EVERY * (1 + len(self.state.pending) // MANY)
        state, calibration = self.state, self.calibration()
        starts = yield from median_steps(self.scheduler, now)
        step = -(-len(starts) // SAMPLE)
        chosen = {state.ids[row] for row in new}
        chosen.update(list(starts)[self.plans % step :: step] if step else ())
        self.plans += 1
        self.learned += 1
        for job, start in starts.items():
            if job not in chosen or start is None:
                continue
            ahead = max(start - now, NEAR)
            told = calibration.told(now, start)
            promised = () if told is None or told.p50 is None or told.p90 is None else (told.p50, told.p90)
            horizon = nearest(calibration.lessons, ahead) if told is not None else -1
            self._keep(state.rows[job], Open(now, ahead, promised, horizon))

    def _keep(self, row: int, asked: Open) -> None:
        """Judge an answer when its time has come; of a job that has left the queue meanwhile, now."""
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
        """Learn from the jobs that have started; forget those that left."""
        state = self.state
        moved = state.moved.since(self._seen)
        self._seen = state.moved.end
        for row in list(self._open) if moved is None else moved:
            if row in self._open and row not in state.pending:
                self._left(row, self._open.pop(row), now)

    def _left(self, row: int, opened: list[Open], when: int) -> None:
        """A job has left the queue; if it has started, `when`."""
        started = int(self.state.jobs[row, J_STATUS]) in _STARTED
        for asked in opened:
            if not started or when < asked.at:
                asked.judged = (1 << len(STATED)) - 1  # it was withdrawn: nobody will know
                continue
            own = self._horizons.setdefault(reach(asked.ahead), _Horizon())
            own.ratios.add((when - asked.at) * 1000 // asked.ahead)
            self.learned += 1
            for which, promised in enumerate(asked.starts):
                self._judge(asked, which, kept=when <= promised)

    def _judge(self, asked: Open, which: int, kept: bool) -> None:
        if asked.horizon in self._horizons and not asked.judged >> which & 1:
            asked.judged |= 1 << which
            self.learned += 1
            self._horizons[asked.horizon].judge(which, kept)


Learned = Answers | Calibration | None
"""What answers may heed: all that was learned here, or what was told of it elsewhere."""


def expectation(scheduler: Scheduler, learned: Learned, now: int | None, only: str = "") -> dict[str, Answer]:
    """When every waiting job (or those up to job `only`) is expected to start, first in order first.

    Where nothing was `learned`, or too little, as the plans say (`eta.expected_starts`).
    """
    return at_once(expecting(scheduler, learned, now, only))


def expecting(scheduler: Scheduler, learned: Learned, now: int | None, only: str = "") -> Steps[dict[str, Answer]]:
    """The same, in steps."""
    calibration = learned.calibration() if isinstance(learned, Answers) else learned or Calibration()
    return calibration.expecting(scheduler, now, only)
