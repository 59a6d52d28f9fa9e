"""The requests of a real service, minute by minute, as its routers count them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Times
from kant.serving.forecast import DAY, DAYS

KEPT = (DAYS + 2) * DAY
"""The number of minutes that are kept. A learned forecast needs no more."""


class Traffic:
    """Requests of each minute, by the minute since the Unix epoch.

    `before` has known rates (requests a second) of the minutes from minute `begins` on. Counts are kept in `file`, for
    use after a restart. Raises InputError for an invalid file.
    """

    def __init__(self, file: Path | None = None, before: Times | None = None, begins: int = 0) -> None:
        self.file = file
        self.counts: dict[int, float] = {}
        self._last: tuple[float, float] | None = None  # when it was last counted, and the total then
        if before is not None:
            self.counts = {begins + k: float(rate) * 60 for k, rate in enumerate(before)}
        for number, line in enumerate(_lines(file), start=1):
            try:
                minute, count = line.split(",")
                self.counts[int(minute)] = float(count)
            except ValueError:
                raise InputError(f"{file}:{number}", "a minute, a comma and its requests", line) from None

    def note(self, now: float, total: float) -> None:
        """Record that all routers together have had `total` requests at `now` (seconds). If the total has decreased, it
        counts as restarted at zero.

        The requests since the last call are spread evenly over the time since then.
        """
        before, self._last = self._last, (now, total)
        if before is None or now <= before[0]:
            return
        since, known = before
        came = total - known if total >= known else total
        first, last = int(since // 60), int(now // 60)
        for minute in range(first, last + 1):
            share = (min(now, minute * 60 + 60) - max(since, minute * 60)) / (now - since)
            self.counts[minute] = self.counts.get(minute, 0.0) + came * share
        if last > first:
            self._keep(first, last)

    def rates(self, minute: int) -> Times:
        """Return the requests a second of the minutes before `minute`, from the first known one on, at most nine days.

        A minute without a count is assumed to equal the same minute of the previous day.
        """
        known = [m for m in self.counts if m < minute]
        first = max(min(known, default=minute), minute - KEPT)
        found = np.zeros(minute - first)
        for k in range(len(found)):
            count = self.counts.get(first + k)
            found[k] = count / 60 if count is not None else found[k - DAY] if k >= DAY else 0.0
        return found

    def _keep(self, first: int, last: int) -> None:
        """Write the completed minutes."""
        for minute in [m for m in self.counts if m < last - KEPT]:
            del self.counts[minute]
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="ascii") as file:
            file.writelines(f"{minute},{self.counts[minute]:.2f}\n" for minute in range(first, last))


def _lines(file: Path | None) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines() if file is not None else []
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), f"a file of minutes that can be read ({error})") from None
