"""Integer units: time in microseconds, GPUs in thousandths, CPU in thousandths of a core, memory in MiB.

Every count is an integer. Seconds, GPUs and hours are floats only in output for users.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from kant.model.errors import InputError

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

GPU = 1000
"""Thousandths in one whole GPU."""

FOREVER = 1 << 62
"""A time later than any other; also the amount of a resource that a node does not limit."""

_UNIT = {"us": 1, "ms": 1000, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)?")

SIZE_CLASSES: tuple[tuple[str, int], ...] = (
    ("1", 1),
    ("2-8", 8),
    ("9-64", 64),
    ("65-256", 256),
    ("257-1024", 1024),
    (">1024", FOREVER),
)
"""Job size classes by whole GPUs, each with its largest member (docs/metrics.md, JWTD)."""


def parse_duration(text: str, where: str = "duration") -> int:
    """Return the microseconds in `27d`, `12h`, `1h30m`, `90s` or `90` (seconds).

    Raises InputError for any other text.
    """
    rest, total = text.strip(), 0.0
    if not rest:
        raise InputError(where, "a duration such as 90s, 12h or 27d", text)
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise InputError(where, "a duration such as 90s, 12h or 27d", text)
        total += float(part[1]) * _UNIT[part[2] or "s"]
        rest = rest[part.end() :].lstrip()
    if total >= FOREVER:
        raise InputError(where, "a duration of at most 146,000 years", text)
    return round(total)


def parse_limit(text: str, where: str) -> int:
    """Return the microseconds in a duration in which every number has a unit, such as `60m` or `1h30m`; also in `0`.

    A bare number means minutes in Slurm and seconds elsewhere, so time limits refuse it. Raises InputError.
    """
    total = parse_duration(text, where)
    last = re.search(r"[\d.]+$", text.strip())
    if last is None or not total:
        return total
    raise InputError(where, f"a unit after {last[0]}, such as {last[0]}s for seconds or {last[0]}m for minutes", text)


def parse_window(text: str, where: str = "window") -> tuple[int, int]:
    """Return the span `A:B` in microseconds; an empty side is open. Raises InputError unless A < B."""
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(where, "a span A:B such as 27d:88d", text)
    begin = parse_duration(first, where) if first.strip() else 0
    end = parse_duration(last, where) if last.strip() else FOREVER
    if begin >= end:
        raise InputError(where, "a span A:B with A before B", text)
    return begin, end


def show_duration(us: float) -> str:
    """Format a duration for users: two significant parts, such as `1d 4h` or `2m 5s`."""
    if us < 0:
        return "-" + show_duration(-us)
    if us < MINUTE:
        return f"{us / SECOND:.3g}s"
    parts: list[str] = []
    rest = int(us)
    for name, unit in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if rest >= unit or parts:
            parts.append(f"{rest // unit}{name}")
            rest %= unit
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part[0] != "0" or len(parts) == 1)


_ZERO: ContextVar[int] = ContextVar("zero", default=0)


def count_from(zero: int) -> None:
    """Set what `clock` shows: dates, with time zero `zero` microseconds after 1970; 0: time since the run began.

    It affects only output, in this context (a thread, a task). No decision depends on it.
    """
    _ZERO.set(zero)


def clock(us: int) -> str:
    """Format a time on the run's clock: `3d 04:05:06` after time zero, or its date, `2026-01-31 04:05:06Z`."""
    if us >= FOREVER:
        return "for ever"
    zero = _ZERO.get()
    days, rest = divmod((us + zero if zero else max(us, 0)) // SECOND, 86_400)
    return f"{_date(days) if zero else f'{days}d'} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}" + "Z" * bool(
        zero
    )


def _date(days: int) -> str:
    """Return the date `days` after 1970-01-01. Source: H. Hinnant, chrono-compatible low-level date algorithms."""
    era, day = divmod(days + 719_468, 146_097)  # eras of 400 years that begin on the first of March
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    return f"{era * 400 + year + (month >= 10):04}-{(month + 2) % 12 + 1:02}-{day + 1:02}"


def size_class(gpus: int) -> str:
    """Return the size class of a job of `gpus` whole GPUs (a share counts as one)."""
    for name, largest in SIZE_CLASSES:
        if gpus <= largest:
            return name
    raise AssertionError("the last size class is open")
