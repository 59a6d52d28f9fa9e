"""Parses the amounts, indices and times in options of `kant submit`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration

if TYPE_CHECKING:
    from datetime import datetime


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InputError("--env", "NAME=VALUE", text)
    return name, value


def mebibytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(MiB|GiB|TiB)", text)
    if match is None:
        raise InputError("--memory", "a size such as 16GiB", text)
    return round(float(match[1]) * {"MiB": 1, "GiB": 1 << 10, "TiB": 1 << 20}[match[2]])


def parse_array(text: str) -> list[int]:
    """Parse indices such as 0-9, 1,3,5-7 or 0-10:2. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        step = int(match[3] or 1) if match is not None else 0
        if low > high or high - low >= 100_000 or step < 1:
            raise InputError("--array", "indices such as 0-9, 1,3,5-7 or 0-10:2, at most 100,000", text)
        found += range(low, high + 1, step)
    return found


def most_at_once(text: str) -> int:
    """Return how many jobs of an array may wait or run at once: 8 in 0-99%8, 0 (all) without %. Raises InputError."""
    _, mark, most = text.partition("%")
    if mark and not re.fullmatch("[1-9][0-9]{0,4}", most):
        raise InputError("--array", "indices, and after % how many of them at once, such as 0-99%8", text)
    return int(most) if mark else 0


def moment(text: str, now: datetime, option: str = "--begin") -> float:
    """Parse a time after `now` into seconds since the Unix epoch: 2h, the next 22:00, or 2030-01-31T08:00.

    Raises InputError.
    """
    from datetime import datetime, timedelta  # slow to load, and most submissions give no time

    clock = re.fullmatch("([0-9]{1,2}):([0-9]{2})", text)
    try:
        if clock is not None:
            found = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            return (found if found > now else found + timedelta(days=1)).timestamp()
        if re.fullmatch("[0-9]{4}-.*", text):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise InputError(option, "a time such as 2h, 22:00 or 2030-01-31T08:00", text) from None
    return now.timestamp() + parse_duration(text.removeprefix("now+"), option) / SECOND
