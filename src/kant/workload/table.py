"""Reads a CSV table into columns of exact integers. Errors name the line and the field."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kant.files import open_text
from kant.model.errors import InputError
from kant.model.units import SECOND

Ints = NDArray[np.int64]

MAX_TIME = 100_000_000_000 * SECOND
"""The longest time and span in a trace (3,170 years): sums of two of them still fit into 64 bits."""
MAX_GPUS = 10_000_000
MAX_WHOLE = 10**15

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH = 50_000
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a table. `whole` numbers are stored unchanged; `seconds` become microseconds.

    A `moment` is an ISO date and time, such as `2020-06-09 18:41:01` or with an offset from UTC. It becomes
    microseconds since 1970; without an offset it counts as UTC. `low` and `high` bound the stored integer. `default`
    replaces an empty cell and a missing column; if it is None, both are errors.
    """

    name: str
    kind: Literal["text", "whole", "seconds", "moment"]
    meaning: str
    low: int = 0
    high: int = MAX_WHOLE
    default: int | str | None = None

    @property
    def expected(self) -> str:
        """What a cell must contain, for error messages."""
        if self.kind == "text":
            return "a text that is not empty"
        if self.kind == "whole":
            return f"a whole number from {self.low} to {self.high}"
        if self.kind == "moment":
            return "a date and time such as 2020-06-09 18:41:01"
        return f"seconds from {self.low // SECOND} to {self.high // SECOND}"


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a file. A missing column has the default value (numbers) or is not there (texts).

    `lines` has the line number of each row; None if the file has no lines.
    """

    rows: int
    numbers: dict[str, Ints]
    texts: dict[str, list[str]]
    lines: Ints | None = None

    def place(self, row: int) -> str:
        """Return the location of a row for error messages: its line number, or its row number from 1."""
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def parse_number(field: Field, text: str) -> int:
    """Return the integer that `text` stands for. Decimal fractions are exact; seconds are rounded half to even.

    Raises ValueError if the text is not a number of the field's kind and range.
    """
    if field.kind == "moment":
        return _moment(field, text.strip())
    if text.isdecimal() and text.isascii() and len(text) < 19:
        value = int(text) * SECOND if field.kind == "seconds" else int(text)
    else:
        text = text.strip()
        if not text and isinstance(field.default, int):
            return field.default
        if len(text) > 400 or not _NUMBER.fullmatch(text):
            raise ValueError
        exact = Decimal(text)
        if abs(exact) > 10**18:
            raise ValueError
        if field.kind == "seconds":
            value = int((exact * SECOND).to_integral_value(ROUND_HALF_EVEN))
        else:
            value = int(exact)
            if value != exact:
                raise ValueError
    if not field.low <= value <= field.high:
        raise ValueError
    return value


def _moment(field: Field, text: str) -> int:
    if not text and isinstance(field.default, int):
        return field.default
    moment = datetime.fromisoformat(text)
    value = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    if not 0 <= value <= field.high:
        raise ValueError
    return value


def read_table(
    path: Path, fields: Sequence[Field], *, strict: bool = False, header: Sequence[str] | None = None
) -> Table:
    """Return the columns `fields` of a CSV file, whose first row names the columns in any order.

    Other columns are skipped, or refused if `strict`. For a file without a header row, `header` has the names of its
    columns. Raises InputError for any other table: without a header, with missing or repeated columns, with rows of
    another width, or with cells that a Field does not allow.
    """
    with open_text(path) as stream:
        reader = csv.reader(stream, strict=True)
        try:
            return _read(path, reader, fields, strict, header)
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}", "a row of CSV", str(error)) from error


def header_names(row: Sequence[str]) -> list[str]:
    """Return column names without surrounding blanks, as they are compared."""
    return [name.strip() for name in row]


def check_header(where: str, header: Sequence[str], fields: Sequence[Field], strict: bool) -> None:
    """Raise InputError unless `header` names each required field, and none twice."""
    known = {field.name for field in fields}
    missing = [field.name for field in fields if field.default is None and field.name not in header]
    if missing:
        raise InputError(where, f"the columns {', '.join(missing)}", ",".join(header))
    if len(set(header)) != len(header):
        raise InputError(where, "each column once", ",".join(header))
    unknown = [name for name in header if name not in known]
    if strict and unknown:
        allowed = ", ".join(field.name for field in fields)
        raise InputError(where, f"only the columns {allowed}", ", ".join(unknown))


def _read(
    path: Path, reader: Iterator[list[str]], fields: Sequence[Field], strict: bool, given: Sequence[str] | None
) -> Table:
    header = header_names(next(reader, [])) if given is None else list(given)
    check_header(f"{path}, line 1", header, fields, strict)
    present = [field for field in fields if field.name in header]
    at = [header.index(field.name) for field in present]
    parts: dict[str, list[Ints]] = {field.name: [] for field in present if field.kind != "text"}
    texts: dict[str, list[str]] = {field.name: [] for field in present if field.kind == "text"}
    total, numbered = 0, [_empty()]
    for lines, rows in _batches(path, reader, len(header)):
        cells = list(zip(*rows, strict=True))
        total += len(rows)
        numbered.append(np.array(lines, dtype=np.int64))
        for field, index in zip(present, at, strict=True):
            if field.kind == "text":
                texts[field.name] += _texts(path, field, lines, cells[index])
            else:
                parts[field.name].append(_numbers(path, field, lines, cells[index]))
    numbers = {name: np.concatenate(part) if part else _empty() for name, part in parts.items()}
    for field in fields:
        if field.name not in header and isinstance(field.default, int):
            numbers[field.name] = np.full(total, field.default, dtype=np.int64)
    return Table(total, numbers, texts, np.concatenate(numbered))


def _batches(path: Path, reader: Iterator[list[str]], width: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield rows of `width` cells with their line numbers, in batches. Blank lines are skipped."""
    while True:
        lines: list[int] = []
        rows: list[list[str]] = []
        for row in islice(reader, _BATCH):
            line: int = reader.line_num  # type: ignore[attr-defined]
            if len(row) != width:
                if not row:
                    continue
                raise InputError(f"{path}, line {line}", f"{width} cells", len(row))
            lines.append(line)
            rows.append(row)
        if not rows:
            return
        yield lines, rows


class _Memo(dict[str, int]):
    """Parsed cells by their text, since most columns of a trace have few distinct texts."""

    def __init__(self, parse: Callable[[str], int]) -> None:
        self.parse = parse

    def __missing__(self, text: str) -> int:
        value = self[text] = self.parse(text)
        return value


def _numbers(path: Path, field: Field, lines: list[int], cells: Sequence[str]) -> Ints:
    memo = _Memo(lambda text: parse_number(field, text))
    try:
        return np.fromiter(map(memo.__getitem__, cells), dtype=np.int64, count=len(cells))
    except ValueError:
        bad = next(i for i, text in enumerate(cells) if not _allowed(field, text))
        raise cell_error(path, lines[bad], field, cells[bad]) from None


def _allowed(field: Field, text: str) -> bool:
    try:
        parse_number(field, text)
    except ValueError:
        return False
    return True


def cell_error(path: Path, line: int, field: Field, got: object) -> InputError:
    """Return the error for a cell that `field` does not allow."""
    return InputError(f"{path}, line {line}, field {field.name}", field.expected, got)


def _texts(path: Path, field: Field, lines: list[int], cells: Sequence[str]) -> list[str]:
    one: dict[str, str] = {}
    texts = [one.setdefault(text, text) for text in cells]
    if "" in one:
        if not isinstance(field.default, str):
            raise cell_error(path, lines[texts.index("")], field, "")
        texts = [text or field.default for text in texts]
    return texts


def _empty() -> Ints:
    return np.zeros(0, dtype=np.int64)


def coded(texts: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the codes of `texts`, and the distinct texts in order of first appearance."""
    codes: dict[str, int] = {}
    column = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), np.int64, count=len(texts))
    return column, tuple(codes)


def check_once(
    path: Path, field: str, ids: Sequence[str], expected: str, place: Callable[[int], str], rows: Sequence[int] = ()
) -> None:
    """Raise InputError, which names the file, the location and the identifier, if one of `ids` occurs twice.

    `rows` are the rows of the identifiers from 0 (empty: all rows), and `place` returns the location of a row.
    """
    if len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    for at, name in enumerate(ids):
        if name in seen:
            raise InputError(f"{path}, {place(rows[at] if rows else at)}, field {field}", expected, name)
        seen.add(name)


def made_unique(ids: Iterable[str], mark: str) -> list[str]:
    """Make identifiers unique: a repeated one gets the mark and a number that make it new."""
    wanted = list(ids)
    taken, times = set(wanted), dict[str, int]()
    if len(taken) == len(wanted):
        return wanted
    found = []
    for name in wanted:
        number = times[name] = times.get(name, 0) + 1
        own = name
        while number > 1 and own in taken:
            own = f"{name}{mark}{number}"
            number += 1
        times[name] = max(times[name], number - 1)
        taken.add(own)
        found.append(own)
    return found
