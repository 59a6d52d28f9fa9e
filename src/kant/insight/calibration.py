"""The calibration of expected starts as data: what answers need, and the state that survives a restart.

`eta_calibrator.py` describes how it is learned. Times are microseconds, ratios thousandths, levels millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from kant.insight.expected_start import ExpectedStart, StartForecast, TrackRecord
from kant.model.units import DAY, GPU, HOUR, MINUTE, SECOND

NEAR = MINUTE
"""The first horizon reaches up to twice this, each further one twice as far ahead."""

SIZES = (1, 8, 64)
"""Upper bounds of the job-size classes, in GPUs; larger jobs form one more class."""

ANY = len(SIZES) + 1
"""The class of all sizes together."""

_CLASSES = ANY + 1

HORIZONS = (10 * MINUTE, HOUR, 6 * HOUR, DAY)
"""Upper bounds of the classes of horizons by which the P90 is calibrated; farther ones form one more class."""

FAR = 3
"""The first class of horizons whose P90 may also come out earlier than the futures say: near ones have too few jams."""

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Correction(Struct, frozen=True, array_like=True):
    """The correction of the answers in one cell: the ratio (permille) of the P50, and the track record."""

    p50: Count
    answers: Count
    kept: Count
    kept_p50: Count = 0


class Calibration(Struct, frozen=True):
    """The corrections by cell, and the ratios (permille) of the P90 by class of horizons: all that answers need.

    It is small, so it can be sent to followers.
    """

    corrections: dict[int, Correction] = field(default_factory=dict)
    p90: dict[int, Count] = field(default_factory=dict)

    def correct(self, now: int, start: ExpectedStart, gpus: int) -> ExpectedStart:
        """Return the answer at `now` about a job of `gpus` milli-GPUs for which the futures say `start`.

        The P90 is that of the futures where too little is known of its class of horizons.
        """
        at = nearest(self.corrections, now, start, gpus)
        if at is None or start.p50 is None:
            return start
        correction, far = self.corrections[at], horizon(start.p50 - now)
        ratio = self.p90.get(far, 1000)
        p50 = corrected(now, start.p50, correction.p50)
        p90 = None if start.p90 is None else max(corrected(now, start.p90, ratio), p50)
        record = TrackRecord(correction.answers, correction.kept, correction.kept_p50, far in self.p90)
        return replace(start, p50=p50, p90=p90, earlier=record)

    def corrected(self, forecast: StartForecast) -> StartForecast:
        """Return the forecast with all its starts corrected."""
        if not self.corrections:
            return forecast
        jobs = {
            name: replace(job, start=self.correct(forecast.now, job.start, job.gpus))
            for name, job in forecast.jobs.items()
        }
        return replace(forecast, jobs=jobs)


def corrected(now: int, start: int, ratio: int) -> int:
    """Return a start whose distance from `now` is scaled by `ratio` (permille)."""
    return now + ahead_of(now, start) * ratio // 1000


def ahead_of(now: int, start: int) -> int:
    """Return how far ahead a start is, at least a second, so that it can be a denominator."""
    return max(start - now, SECOND)


def cell(reach: int, size: int) -> int:
    """Return the cell number for forecasts at one horizon, of jobs of one size class."""
    return reach * _CLASSES + size


def reach(ahead: int) -> int:
    """Return the number of the horizon: 1 up to twice NEAR, 2 up to four times, …"""
    return (max(ahead, NEAR) // NEAR).bit_length()


def horizon(ahead: int) -> int:
    """Return the class of horizons of a start that is so far ahead."""
    return sum(ahead > most for most in HORIZONS)


def size_of(gpus: int) -> int:
    """Return the size class of a job of `gpus` milli-GPUs."""
    return sum(gpus > most * GPU for most in SIZES)


def nearest(known: Mapping[int, object], now: int, start: ExpectedStart, gpus: int) -> int | None:
    """Return the best-fitting known cell: same class and horizon, else all sizes, else the nearest horizon."""
    if start.p50 is None or not known:
        return None
    own, size = reach(start.p50 - now), size_of(gpus)
    for fits in (size, ANY):
        if cell(own, fits) in known:
            return cell(own, fits)
    return min(known, key=lambda at: (abs(at // _CLASSES - own), at % _CLASSES != size, at % _CLASSES != ANY, -at))


class OpenAnswer(Struct, array_like=True):
    """An answer given at `at` that is still to be judged. The futures looked `ahead` microseconds ahead.

    `ahead` is for P50 and P90 (-1: not known), `starts` are the answers, empty where nothing had been learned. `cell`
    is the cell used, or -1, and `own` the job's own cell. `judged` has a bit for each one that has been judged.
    """

    at: int
    ahead: tuple[int, int]
    starts: Annotated[tuple[int, ...], Meta(max_length=2)]
    cell: int
    own: int
    judged: int = 0


class CellState(Struct, array_like=True):
    """The state of one cell: the latest ratios of the P50, oldest first, its level, and how many answers held.

    `held_p50`: by their P50, too.
    """

    ratios: list[Count]
    level: Count
    judged: Count
    held: Count
    held_p50: Count


class CalibrationState(Struct):
    """All that was learned, for use after a restart. Times are on the clock of the state.

    `jams` has the ratios of the P90 by class of horizons and by jam, `open` the open answers of each waiting job;
    `next` is when to ask again. An older Kant has its cells as `cells`, in another form: they are not read.
    """

    cells: dict[int, CellState] = field(default_factory=dict, name="by_cell")
    jams: dict[int, dict[int, list[Count]]] = {}
    open: dict[str, list[OpenAnswer]] = {}
    asked: int = 0
    next: int = 0
