"""What is known of earlier expected starts, as data: what answers need of it, and all that the next one goes on with.

`answers.py` says how it is learned. Times are microseconds, ratios thousandths, levels millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from kant.model.units import MINUTE
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import Expected, expecting_starts, median_steps
from kant.scheduler.steps import Steps

NEAR = 10 * MINUTE
"""Plans that say less are taken to say this; each further horizon reaches twice as far ahead."""


Count = Annotated[int, Meta(ge=0, le=1 << 40)]


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


class Lesson(Struct, frozen=True, array_like=True):
    """What is known of answers that look about equally far ahead: the ratios (permille) of P50 and P90, `Earlier`."""

    p50: Count
    p90: Count
    answers: Count
    kept: Count


class Calibration(Struct, frozen=True):
    """All that answers need of what was learned, by horizon: few numbers, so that it can be told to others."""

    lessons: dict[int, Lesson] = {}

    def told(self, now: int, start: int) -> Answer | None:
        """What is answered at `now` where the plan of `median_starts` says `start`; None while too little is known."""
        if not self.lessons:
            return None
        ahead = max(start - now, NEAR)
        lesson = self.lessons[nearest(self.lessons, ahead)]
        starts = now + ahead * lesson.p50 // 1000, now + ahead * lesson.p90 // 1000
        return Answer(min(starts), starts[1], Earlier(lesson.answers, lesson.kept))

    def expecting(self, scheduler: Scheduler, now: int | None = None, only: str = "") -> Steps[dict[str, Answer]]:
        """When every waiting job (or those up to job `only`) is expected to start, first in order first."""
        now = scheduler.state.now if now is None else now
        medians = yield from median_steps(scheduler, now, only)
        told = {job: self.told(now, start) for job, start in medians.items() if start is not None}
        if all(told.get(job) is not None for job in medians):
            return {job: answer for job, answer in told.items() if answer is not None}
        plans: dict[str, Expected] = {job: (start, start) for job, start in medians.items()}
        if scheduler.profile.estimates.learns:  # else both plans are that one
            plans = yield from expecting_starts(scheduler, now, only)
        return {job: told.get(job) or Answer(*plan) for job, plan in plans.items() if job in medians}


def nearest(known: Mapping[int, object], ahead: int) -> int:
    """The horizon that answers which look so far `ahead` are read off: the nearest, of two the farther."""
    own = reach(ahead)
    return min(known, key=lambda at: (abs(at - own), -at))


class Open(Struct, array_like=True):
    """An answer that is still to be judged: given when, what the plan and the answer said, and which are judged.

    `starts`: at the STATED probabilities, empty where nothing had been learned. `horizon`: what it was read off; -1.
    `judged`: of the STATED probabilities, as bits.
    """

    at: int
    ahead: Annotated[int, Meta(ge=1)]
    starts: Annotated[tuple[int, ...], Meta(max_length=2)]
    horizon: int
    judged: int = 0


class Known(Struct, array_like=True):
    """What is known of one horizon: the latest ratios, the oldest first, the levels, and how many answers were kept."""

    ratios: list[Count]
    levels: Annotated[list[Count], Meta(min_length=2, max_length=2)]
    judged: Count
    held: Count


class Memory(Struct):
    """All that was learned, for the next one to go on with. Times are on the clock of the state.

    `open` has the answers of each job that still waits; `next` is when to ask again.
    """

    horizons: dict[int, Known] = {}
    open: dict[str, list[Open]] = {}
    plans: int = 0
    next: int = 0


def reach(ahead: int) -> int:
    """The number of the horizon: 1 up to twice NEAR, 2 up to four times, …"""
    return (ahead // NEAR).bit_length()
