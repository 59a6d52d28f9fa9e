"""The file of a calendar: a CSV table with a header, plain or gzip, one booking per row.

id,start,end,gpus,alignment,offset,gaps
pretrain,0d,5d,256,8,,2d-2d6h
serving,8h,7d,64,,0,

Times are durations after time zero, such as 1d8h. An empty cell or a missing column means: alignment 1, no fixed
offset, no gaps. Files of MiniMalloc (`id,lower,upper,size`) can be read as well; their times are whole numbers. A file
with several calendars has a column `instance`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from kant.files import open_text
from kant.model.errors import InputError
from kant.model.units import parse_duration
from kant.optimize.calendar.booking import LineBooking

KANT = ("id", "start", "end", "gpus")
MINIMALLOC = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "offset", "gaps", "instance")

MOST_ROWS = 3_000
"""The maximum number of rows that are read."""

Otherwise = TypeVar("Otherwise", int, None)


class CalendarFile(NamedTuple):
    """The bookings of one calendar. `timed`: times are microseconds; otherwise plain numbers."""

    bookings: tuple[LineBooking, ...]
    timed: bool


def read_calendar(path: Path, instance: str | None = None) -> CalendarFile:
    """Read the bookings of a file, or of one of its calendars. Raises InputError for the first invalid row."""
    rows = list(_rows(path))
    header = [name.strip() for name in rows[0][1]] if rows else []
    timed = set(KANT) <= set(header)
    needed = KANT if timed else MINIMALLOC
    if not set(needed) <= set(header):
        raise InputError(f"{path}, header", f"the columns {','.join(KANT)} or {','.join(MINIMALLOC)}", ",".join(header))
    unknown = [name for name in header if name not in (*needed, *OPTIONAL)]
    if unknown or len(set(header)) < len(header):
        raise InputError(f"{path}, header", f"each column once, and of {', '.join((*needed, *OPTIONAL))}", header)
    bookings: list[LineBooking] = []
    instances: dict[str, None] = {}
    seen: set[tuple[str, str]] = set()
    for line, cells in rows[1:]:
        where = f"{path}, line {line}"
        if len(cells) != len(header):
            raise InputError(where, f"{len(header)} cells, one for each column", len(cells))
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        instances[row.get("instance", "")] = None
        if row.get("instance", "") != (instance or "") and instance is not None:
            continue
        booking = _booking(row, needed, timed, where)
        name = row.get("instance", ""), booking.id
        if name in seen:
            raise InputError(f"{where}, field id", "a name that no other row has", booking.id)
        seen.add(name)
        bookings.append(booking)
    known = ", ".join(instances)
    if instance is not None and not bookings:
        raise InputError("--slice", f"one of the calendars of {path}: {known or 'none'}", instance)
    if instance is None and len(instances) > 1:
        raise InputError(str(path), f"one calendar, or --slice with one of {known}", f"{len(instances)} calendars")
    if not bookings:
        raise InputError(str(path), "at least one booking", "none")
    return CalendarFile(tuple(bookings), timed)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The non-empty rows, each with its line number."""
    with open_text(path) as stream:
        reader = csv.reader(stream.read().splitlines())
    try:
        for count, row in enumerate(row for row in reader if any(cell.strip() for cell in row)):
            if count > MOST_ROWS:
                raise InputError(str(path), f"at most {MOST_ROWS:,} bookings")
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}", f"a row of a CSV table ({error})") from None


def _booking(row: dict[str, str], columns: tuple[str, ...], timed: bool, where: str) -> LineBooking:
    time = parse_duration if timed else _whole
    gaps = []
    for part in row.get("gaps", "").split():
        begin, dash, end = part.partition("-")
        if not dash:
            raise InputError(f"{where}, field gaps", "spans such as 2d-2d6h, separated by spaces", part)
        gaps.append((time(begin, f"{where}, field gaps"), time(end, f"{where}, field gaps")))
    name, start, end, gpus = columns
    if not row[name]:
        raise InputError(f"{where}, field id", "a name")
    try:
        return LineBooking(
            row[name],
            time(row[start], f"{where}, field {start}"),
            time(row[end], f"{where}, field {end}"),
            _whole(row[gpus], f"{where}, field {gpus}"),
            _or(row.get("alignment"), 1, f"{where}, field alignment"),
            _or(row.get("offset"), None, f"{where}, field offset"),
            tuple(gaps),
        )
    except InputError as error:
        if error.where.startswith("booking "):
            raise InputError(f"{where}, {error.where}", error.expected, error.got) from None
        raise


def _whole(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputError(where, "a whole number from 0 on", text)
    return int(text)


def _or(text: str | None, otherwise: Otherwise, where: str) -> int | Otherwise:
    return _whole(text, where) if text else otherwise
