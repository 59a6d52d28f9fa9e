"""The calibration of expected starts as data: what answers need, and the state that survives a restart.

`eta_calibrator.py` describes how Kant learns it. Times are in microseconds, ratios in thousandths; all are integers.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from kant.insight.expected_start import ExpectedStart, StartForecast, TrackRecord
from kant.model.units import DAY, HOUR, MINUTE, SECOND

HORIZONS = (10 * MINUTE, HOUR, 6 * HOUR, DAY)
"""Upper bounds (µs) of the classes of horizons. A horizon is how far ahead a start is; the last class has no bound."""

FAR = 3
"""The first class whose P90 may be corrected to an earlier time. Nearer classes see too few periods of congestion."""

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Correction(Struct, frozen=True, array_like=True):
    """The correction of the answers in one class of horizons: `p50` and `p90` are ratios (permille); the other numbers
    are the track record. `calibrated`: enough periods of congestion are known; otherwise both ratios are 1000.
    """

    p50: Count
    p90: Count
    answers: Count
    kept: Count
    kept_p50: Count
    calibrated: bool


class Calibration(Struct, frozen=True):
    """The corrections by class of horizons. This struct is small enough to be sent to followers."""

    corrections: dict[int, Correction] = field(default_factory=dict, name="by_horizon")

    def correct(self, now: int, start: ExpectedStart) -> ExpectedStart:
        """Return the corrected answer at `now` for the forecast `start`."""
        own = None if start.p50 is None else self.corrections.get(horizon(start.p50 - now))
        if own is None or start.p50 is None:
            return start
        p50 = corrected(now, start.p50, own.p50)
        p90 = None if start.p90 is None else max(corrected(now, start.p90, own.p90), p50)
        record = TrackRecord(own.answers, own.kept, own.kept_p50, own.calibrated)
        return replace(start, p50=p50, p90=p90, earlier=record)

    def corrected(self, forecast: StartForecast) -> StartForecast:
        """Return the forecast with all its starts corrected."""
        jobs = {name: replace(job, start=self.correct(forecast.now, job.start)) for name, job in forecast.jobs.items()}
        return replace(forecast, jobs=jobs)


def corrected(now: int, start: int, ratio: int) -> int:
    """Return a start whose distance from `now` is scaled by `ratio` (permille)."""
    return now + ahead_of(now, start) * ratio // 1000


def ahead_of(now: int, start: int) -> int:
    """Return how far ahead a start is in microseconds: at least a second, to be divided by."""
    return max(start - now, SECOND)


def horizon(ahead: int) -> int:
    """Return the class of horizons of a start that is `ahead` microseconds ahead."""
    return sum(ahead > most for most in HORIZONS)


class OpenAnswer(Struct, array_like=True):
    """An answer given at time `at` that cannot be judged yet, because its job still waits.

    `ahead` is how far ahead the simulated P50 and P90 were (microseconds; -1: unknown). `starts` has the P50 and P90 of
    the answer, as far as they are known. `jam` is the number of the period of congestion.
    """

    at: int
    jam: int
    ahead: tuple[int, int]
    starts: Annotated[tuple[int, ...], Meta(max_length=2)]
    judged: bool = False


class Quarter(Struct, array_like=True):
    """A quarter of a day: sorted ratios of actual wait to forecast P50 and P90 (permille), and its `jam`."""

    jam: int
    p50: list[Count] = field(default_factory=list)
    p90: list[Count] = field(default_factory=list)


class HorizonState(Struct, array_like=True):
    """A class of horizons: ratios by quarter of a day, and how many answers were judged, held P90, held P50."""

    quarters: dict[int, Quarter] = field(default_factory=dict)
    judged: Count = 0
    held: Count = 0
    held_p50: Count = 0


class CalibrationState(Struct):
    """Everything that was learned, for use after a restart. Times are on the clock of the cluster state.

    `open` has the answers, by waiting job, that are not judged yet. `next` is when to forecast again. `jam` is the
    number of the latest period of congestion. Files of older versions of Kant have other fields and are not read.
    """

    horizons: dict[int, HorizonState] = field(default_factory=dict, name="by_horizon")
    open: dict[str, list[OpenAnswer]] = field(default_factory=dict, name="open_answers")
    asked: int = 0
    next: int = 0
    jam: int = 0
