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

from heapq import heappop, heappush

from msgspec import Struct

from kant.cluster.columns import J_STATUS
from kant.cluster.history import Window
from kant.model.status import JobStatus
from kant.model.units import HOUR, MINUTE
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import expected_starts, median_starts

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

NEAR = 10 * MINUTE
"""Plans that say less are taken to say this; each further horizon reaches twice as far ahead."""

STEP = 10
"""How fast levels move: by STEP x q millionths after a miss at q permille, by STEP x (1000 - q) after a hit."""

HIGHEST_LEVEL = 1_500_000
STATED = (500, 900)
_ONE = 1_000_000
_STARTED = (JobStatus.RUNNING.value, JobStatus.FINISHED.value)


class Earlier(Struct, frozen=True):
    """Of `answers` earlier ones that looked about as far ahead, how many were `kept` by their P90.

    Where too few looked as far ahead to learn from them, of those that came nearest to it.
    """

    answers: int
    kept: int

    def __str__(self) -> str:
        if not self.answers:
            return ""
        return (
            f"of {self.answers:,} earlier answers that looked about as far ahead "
            f"the P90 held for {100 * self.kept / self.answers:.0f} %"
        )


class Answer(Struct, frozen=True):
    """When a job is expected to start with a probability of 50 % and 90 % (microseconds; None: nobody knows).

    `earlier` tells what became of such answers; None where the times are those of the plans, as too few are known.
    """

    p50: int | None
    p90: int | None
    earlier: Earlier | None = None


class _Asked:
    """An answer that is still to be judged: given when, what the plan and the answer said, and which are judged."""

    __slots__ = ("ahead", "at", "horizon", "judged", "starts")

    def __init__(self, at: int, ahead: int, told: Answer | None, horizon: _Horizon | None) -> None:
        self.at = at
        self.ahead = ahead
        self.starts = (
            () if told is None or told.p50 is None or told.p90 is None else (told.p50, told.p90)
        )  # at the STATED probabilities; empty where nothing had been learned
        self.horizon = horizon  # that it was read off
        self.judged = 0  # of the STATED probabilities, as bits


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

    def judge(self, which: int, kept: bool) -> None:
        permille = STATED[which]
        step = STEP * (permille - 1000 if kept else permille)
        self.levels[which] = min(max(self.levels[which] + step, 0), HIGHEST_LEVEL)
        if which == len(STATED) - 1:
            self.judged += 1
            self.held += kept


class Answers:
    """Follows the state of one scheduler. Call `observe` at the end of every instant, when its plan is carried out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.plans = 0
        self._horizons: dict[int, _Horizon] = {}
        self._open: dict[int, list[_Asked]] = {}  # by row, while it waits
        self._due: list[tuple[int, int, int, _Asked]] = []  # heap: promised start, number, probability, answer
        self._number = 0
        self._rows = len(self.state.ids)
        self._seen = self.state.moved.end
        self._next = self.state.now

    def observe(self, now: int) -> None:
        """Judge what can be judged at `now`, and ask again when somebody has come to wait."""
        while self._due and self._due[0][0] < now:
            _, _, which, asked = heappop(self._due)
            self._judge(asked, which, kept=False)
        self._settle(now)
        new = [row for row in range(self._rows, len(self.state.ids)) if row in self.state.pending]
        self._rows = len(self.state.ids)
        if new and now >= self._next:
            self._next = now + EVERY * (1 + len(self.state.pending) // MANY)
            self._ask(now, new)

    def expected(self, now: int | None = None, only: str = "") -> dict[str, Answer]:
        """When every waiting job (or those up to job `only`) is expected to start, first in order first."""
        now = self.state.now if now is None else now
        medians = median_starts(self.scheduler, now, only)
        told = {job: self.told(now, start) for job, start in medians.items() if start is not None}
        if all(told.get(job) is not None for job in medians):
            return {job: answer for job, answer in told.items() if answer is not None}
        plans = expected_starts(self.scheduler, now, only)
        return {job: told.get(job) or Answer(*plan) for job, plan in plans.items()}

    def told(self, now: int, start: int) -> Answer | None:
        """What is answered at `now` where the plan of `median_starts` says `start`; None while too little is known."""
        ahead = max(start - now, NEAR)
        horizon = self._telling(_reach(ahead))
        if horizon is None:
            return None
        starts = [now + ahead * horizon.ratio(which) // 1000 for which in range(len(STATED))]
        return Answer(min(starts), starts[-1], Earlier(horizon.judged, horizon.held))

    def _telling(self, reach: int) -> _Horizon | None:
        """The horizon that answers are read off: of those that know enough the nearest, of two the farther."""
        known = (at for at, horizon in self._horizons.items() if len(horizon.ratios.ordered) >= FEW)
        nearest = min(known, key=lambda at: (abs(at - reach), -at), default=None)
        return None if nearest is None else self._horizons[nearest]

    # --- asking ----------------------------------------------------------------------------------------------

    def _ask(self, now: int, new: list[int]) -> None:
        """Remember what a plan says of the `new` jobs and of some of the others, evenly over the order."""
        state, starts = self.state, median_starts(self.scheduler, now)
        step = -(-len(starts) // SAMPLE)
        chosen = {state.ids[row] for row in new}
        chosen.update(list(starts)[self.plans % step :: step] if step else ())
        self.plans += 1
        for job, start in starts.items():
            if job not in chosen or start is None:
                continue
            ahead = max(start - now, NEAR)
            told = self.told(now, start)
            asked = _Asked(now, ahead, told, self._telling(_reach(ahead)))
            self._open.setdefault(state.rows[job], []).append(asked)
            for which, promised in enumerate(asked.starts):
                self._number += 1
                heappush(self._due, (promised, self._number, which, asked))

    # --- judging ---------------------------------------------------------------------------------------------

    def _settle(self, now: int) -> None:
        """Learn from the jobs that have started; forget those that left."""
        state = self.state
        moved = state.moved.since(self._seen)
        self._seen = state.moved.end
        for row in list(self._open) if moved is None else moved:
            if row not in self._open or row in state.pending:
                continue
            started = int(state.jobs[row, J_STATUS]) in _STARTED
            for asked in self._open.pop(row):
                if not started:
                    asked.judged = (1 << len(STATED)) - 1  # it was withdrawn: nobody will know
                    continue
                own = self._horizons.setdefault(_reach(asked.ahead), _Horizon())
                own.ratios.add((now - asked.at) * 1000 // asked.ahead)
                for which in range(len(asked.starts)):
                    self._judge(asked, which, kept=True)

    def _judge(self, asked: _Asked, which: int, kept: bool) -> None:
        if asked.horizon is not None and not asked.judged >> which & 1:
            asked.judged |= 1 << which
            asked.horizon.judge(which, kept)


def _reach(ahead: int) -> int:
    """The number of the horizon: 1 up to twice NEAR, 2 up to four times, …"""
    return (ahead // NEAR).bit_length()


def expectation(scheduler: Scheduler, answers: Answers | None, now: int | None, only: str = "") -> dict[str, Answer]:
    """When every waiting job (or those up to job `only`) is expected to start, first in order first.

    Without `answers`, or where these know too little, as the plans say (`eta.expected_starts`).
    """
    if answers is not None:
        return answers.expected(now, only)
    return {job: Answer(*plan) for job, plan in expected_starts(scheduler, now, only).items()}
