"""The calibration of expected starts as data: what answers need, and the state that a restart goes on with.

`eta_calibrator.py` says how it is learned. Times are microseconds, ratios thousandths, levels millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from kant.insight.cooperative import Task
from kant.insight.eta import StartTimes, expected_starts, median_starts
from kant.model.units import MINUTE
from kant.scheduler.cycle import Scheduler

NEAR = 10 * MINUTE
"""A plan that looks less far ahead counts as this. Each further horizon reaches twice as far ahead."""


Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class TrackRecord(Struct, frozen=True):
    """Of `answers` earlier answers that looked about as far ahead, `kept` held: the job started by their P90.

    Where too few looked as far ahead, those of the nearest horizon are counted.
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


class ExpectedStart(Struct, frozen=True):
    """When a job is expected to start with a probability of 50 % and 90 % (microseconds; None: not known).

    `earlier` is the track record of such answers; None where too few are known and the times are those of the plans.
    """

    p50: int | None
    p90: int | None
    earlier: TrackRecord | None = None


class Correction(Struct, frozen=True, array_like=True):
    """The correction of answers that look about equally far ahead: ratios (permille) of P50 and P90, track record."""

    p50: Count
    p90: Count
    answers: Count
    kept: Count


class Calibration(Struct, frozen=True):
    """The corrections by horizon: all that answers need. It is a few numbers, so that followers can get it."""

    lessons: dict[int, Correction] = {}

    def correct(self, now: int, start: int) -> ExpectedStart | None:
        """The answer at `now` where the plan of median run times says `start`; None while too little is known."""
        if not self.lessons:
            return None
        ahead = max(start - now, NEAR)
        lesson = self.lessons[nearest(self.lessons, ahead)]
        starts = now + ahead * lesson.p50 // 1000, now + ahead * lesson.p90 // 1000
        return ExpectedStart(min(starts), starts[1], TrackRecord(lesson.answers, lesson.kept))

    def expected_starts_task(
        self, scheduler: Scheduler, now: int | None = None, only: str = ""
    ) -> Task[dict[str, ExpectedStart]]:
        """The expected start of every waiting job (or of those up to `only`), in order, as a cooperative task."""
        now = scheduler.state.now if now is None else now
        medians = yield from median_starts.task(scheduler, now, only)
        corrected = {job: self.correct(now, start) for job, start in medians.items() if start is not None}
        if all(corrected.get(job) is not None for job in medians):
            return {job: answer for job, answer in corrected.items() if answer is not None}
        plans: dict[str, StartTimes] = {job: (start, start) for job, start in medians.items()}
        if scheduler.profile.estimates.learns:  # else both plans are that one
            plans = yield from expected_starts.task(scheduler, now, only)
        return {job: corrected.get(job) or ExpectedStart(*plan) for job, plan in plans.items() if job in medians}


def nearest(known: Mapping[int, object], ahead: int) -> int:
    """The known horizon for answers that look so far `ahead`: the nearest, of two the farther."""
    own = reach(ahead)
    return min(known, key=lambda at: (abs(at - own), -at))


class OpenAnswer(Struct, array_like=True):
    """An answer that was given at `at` and is still to be judged. The plan looked `ahead` microseconds ahead.

    `starts` are the times at the STATED probabilities, empty where nothing had been learned. `horizon` is the one that
    was used, or -1. `judged` says as bits which of the STATED probabilities have been judged.
    """

    at: int
    ahead: Annotated[int, Meta(ge=1)]
    starts: Annotated[tuple[int, ...], Meta(max_length=2)]
    horizon: int
    judged: int = 0


class HorizonState(Struct, array_like=True):
    """What is known of one horizon: the latest ratios, oldest first, the levels, and how many answers held."""

    ratios: list[Count]
    levels: Annotated[list[Count], Meta(min_length=2, max_length=2)]
    judged: Count
    held: Count


class CalibrationState(Struct):
    """All that was learned, for a restart to go on with. Times are on the clock of the state.

    `open` has the open answers of each waiting job; `next` is when to ask again.
    """

    horizons: dict[int, HorizonState] = {}
    open: dict[str, list[OpenAnswer]] = {}
    plans: int = 0
    next: int = 0


def reach(ahead: int) -> int:
    """The number of the horizon: 1 up to twice NEAR, 2 up to four times, …"""
    return (ahead // NEAR).bit_length()
