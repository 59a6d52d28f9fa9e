"""Forecasts of request rates: from a file, or from the daily pattern of the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Times

DAY = 24 * 60
DAYS = 7
"""The number of past days from which the daily pattern and the forecast errors are learned."""

SMOOTH = 7
"""The pattern is averaged over this number of minutes on both sides."""

WINDOW = 30
"""The present is compared with the pattern over this number of minutes."""

LATEST, AHEAD = 10, 60
"""The number of latest minutes that show the error of a written forecast; and for how many minutes ahead that error
applies.
"""

UNKNOWN = 1.1
"""The margin (a factor) as long as less than one hour of traffic is known."""

QUIET = 1e-3
"""The lower limit of the pattern, in requests a second."""


class Forecast(Protocol):
    """A forecast of the coming minutes."""

    def most(self, now: int, begin: int, end: int) -> float:
        """Return the most requests a second in the minutes `begin` to before `end`, as forecast at minute `now`."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """A forecast from a file: requests a second in each minute, multiplied by a margin.

    Its last minute continues forever. With `again` it repeats: a day repeats daily, a week weekly.
    """

    rates: Times
    margin: float = 1.0
    again: bool = False

    def most(self, now: int, begin: int, end: int) -> float:
        if self.again:
            minutes = np.arange(begin, max(end, begin + 1)) % len(self.rates)
            return self.margin * float(self.rates[minutes].max())
        last = len(self.rates) - 1
        return self.margin * float(self.rates[min(begin, last) : min(max(end, begin + 1), last + 1)].max())


@dataclass(frozen=True, slots=True)
class Seen:
    """Corrects forecasts that are too low: for the next hour, takes the larger of the forecast and a projection from
    recent traffic.

    The projection is the maximum of the last minutes, multiplied by the forecast's rise since then and by a margin. The
    margin would have covered the share `cover` of the minutes of the last day, if each was forecast `lead` minutes
    before. `seen` has requests a second from minute `first` of the forecast on; only those before `now` are used.
    """

    forecast: Forecast
    seen: Times
    first: int = 0
    cover: float = 0.98
    lead: int = 7

    def most(self, now: int, begin: int, end: int) -> float:
        said = self.forecast.most(now, begin, end)
        known = self.seen[max(now - DAY - self.first, 0) : max(now - self.first, 0)]
        if len(known) == 0 or begin - now > AHEAD:
            return said
        latest = known[-LATEST:]
        then = self.forecast.most(now, now - len(latest), now)
        return max(said, float(latest.max()) * max(said / max(then, QUIET), 1.0) * self._margin(known))

    def latest(self, now: int) -> float:
        """Return the requests a second of the minute before `now`; 0 if nothing was seen."""
        return float(self.seen[now - self.first - 1]) if 0 < now - self.first <= len(self.seen) else 0.0

    def _margin(self, known: Times) -> float:
        """Return the margin: a quantile of the ratio of each minute to the recent maximum `lead` minutes before."""
        if len(known) < AHEAD:
            return UNKNOWN
        high = np.maximum(np.lib.stride_tricks.sliding_window_view(known, LATEST).max(axis=1), QUIET)
        return max(1.0, float(np.quantile(known[LATEST + self.lead :] / high[: -self.lead - 1], self.cover)))


class Rhythm:
    """A forecast from the same minutes of up to seven past days, scaled by how the last half hour compares with these.

    The forecast is multiplied by a margin that would have covered the share `cover` of the minutes of these days, if
    each had been forecast `lead` minutes before. The margin is learned again every day from the forecast's own errors.
    `seen` has the requests a second of all minutes, the first `history` of them before time zero; only minutes before
    `now` are used. Raises InputError for fewer than two days of history.
    """

    def __init__(self, seen: Times, history: int, cover: float, lead: int, margin: float = 1.0) -> None:
        if history < 2 * DAY:
            raise InputError("history", "at least two days", f"{history} minutes")
        self.history = history
        self.cover = cover
        self.margin = margin
        total = np.concatenate([[0.0], np.cumsum(seen)])
        minutes = np.arange(len(seen) + DAY - SMOOTH)
        self._rhythm = self._usual(total, minutes)
        own = np.concatenate([[0.0], np.cumsum(self._rhythm)])
        at = np.arange(len(seen) + 1)
        since = np.maximum(at - WINDOW, DAY)  # the first day has no previous day
        usual = own[at] - own[np.minimum(since, at)]
        self._level = np.where(usual > 0, (total[at] - total[np.minimum(since, at)]) / np.maximum(usual, QUIET), 1.0)
        made = at[DAY : len(seen) - lead]
        off = seen[made + lead] / np.maximum(self._rhythm[made + lead] * self._level[made], QUIET)
        self._off = np.concatenate([np.full(DAY + lead, np.nan), off])  # by forecast minute
        self._margins: dict[int, float] = {}

    @staticmethod
    def _usual(total: Times, minutes: np.ndarray) -> Times:
        """Return for each minute the mean of the same minutes of the previous days, as far as there are any."""
        known = len(total) - 1
        found, days = np.zeros(len(minutes)), np.zeros(len(minutes))
        for back in range(1, DAYS + 1):
            middle = minutes - back * DAY
            low, high = np.maximum(middle - SMOOTH, 0), np.minimum(middle + SMOOTH + 1, known)
            there = (middle >= 0) & (middle < known)
            span = np.where(there, high - low, 1)
            part = (total[np.where(there, high, 0)] - total[np.where(there, low, 0)]) / span
            found += np.where(there, part, 0.0)
            days += there
        usual: Times = np.maximum(found / np.maximum(days, 1), QUIET)
        return usual

    def _covering(self, day: int) -> float:
        """Return the margin for the day that starts at minute `day`: it would have covered the previous days."""
        if day not in self._margins:
            errors = self._off[max(day - DAYS * DAY, 0) : day]
            known = errors[~np.isnan(errors)]
            self._margins[day] = float(np.quantile(known, self.cover)) if len(known) else 1.0
        return self._margins[day]

    def most(self, now: int, begin: int, end: int) -> float:
        at = now + self.history
        first, last = begin + self.history, min(max(end, begin + 1), now + DAY - SMOOTH) + self.history
        usual = float(self._rhythm[first:last].max()) if first < last else 0.0
        return self.margin * self._covering(at - at % DAY) * float(self._level[at]) * usual
