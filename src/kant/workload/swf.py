"""The Standard Workload Format, version 2.2, of the Parallel Workloads Archive.

Feitelson's definition: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Each line has 18 numbers (-1:
unknown). Lines that begin with ';' are comments; some of them are `Key: value` headers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kant.files import open_bytes
from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.table import MAX_GPUS, MAX_TIME, Field, Ints, parse_number
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

Floats = NDArray[np.float64]

FIELDS = (
    Field("job", "whole", "job number", high=10**12),
    Field("submit", "seconds", "submission in seconds since the log began", low=-SECOND, high=MAX_TIME),
    Field("wait", "seconds", "wait in seconds", low=-MAX_TIME, high=MAX_TIME),
    Field("run", "seconds", "run time in seconds", low=-SECOND, high=MAX_TIME),
    Field("allocated", "whole", "processors allocated", low=-1, high=MAX_GPUS),
    Field("cpu_time", "seconds", "mean CPU seconds per processor", low=-MAX_TIME, high=MAX_TIME),
    Field("used_memory", "seconds", "mean KB used per processor", low=-MAX_TIME, high=MAX_TIME),
    Field("requested", "whole", "processors requested", low=-1, high=MAX_GPUS),
    Field("requested_time", "seconds", "run-time limit in seconds", low=-SECOND, high=MAX_TIME),
    Field("requested_memory", "seconds", "KB requested per processor", low=-MAX_TIME, high=MAX_TIME),
    Field("status", "whole", "0 failed, 1 completed, 2-4 part of a job, 5 cancelled", low=-1, high=10**6),
    Field("user", "whole", "user number", low=-1, high=10**12),
    Field("group", "whole", "group number", low=-1, high=10**12),
    Field("executable", "whole", "application number", low=-1, high=10**12),
    Field("queue", "whole", "queue number", low=-1, high=10**12),
    Field("partition", "whole", "partition number", low=-1, high=10**12),
    Field("preceding", "whole", "job number that this one waits for", low=-1, high=10**12),
    Field("think_time", "seconds", "seconds from that job's end to this one", low=-MAX_TIME, high=MAX_TIME),
)  # fmt: skip
NAMES = tuple(field.name for field in FIELDS)
WIDTH = len(FIELDS)

_LOW = np.array([f.low // SECOND if f.kind == "seconds" else f.low for f in FIELDS], dtype=float)
_HIGH = np.array([f.high // SECOND if f.kind == "seconds" else f.high for f in FIELDS], dtype=float)
_WHOLE = np.array([f.kind == "whole" for f in FIELDS])
_CHUNK = 1 << 22
_IDS = 1 << 14
_ALLOWED = b"0123456789+-.eE \t\r\n"


@dataclass(frozen=True, slots=True)
class SwfLog:
    """A log as written: the headers in file order, and the columns that were read, by name, as floats.

    Times are seconds and memory is KB, as in the file. Whole numbers are exact, since all are below 2^53.
    """

    header: tuple[tuple[str, str], ...]
    columns: dict[str, Floats]


def read_log(path: Path, names: tuple[str, ...] = NAMES) -> SwfLog:
    """Return the columns `names` of a log. Raises InputError, which names the first invalid line and field."""
    at = [NAMES.index(name) for name in names]
    header: list[tuple[str, str]] = []
    parts: dict[str, list[Floats]] = {name: [] for name in names}
    line = 1
    for chunk in _chunks(path):
        data = _strip_comments(chunk, header)
        rows = _numbers(data)
        if rows is None:
            raise _blame(path, chunk, line)
        for name, field in zip(names, at, strict=True):
            parts[name].append(rows[:, field].copy())
        line += chunk.count(b"\n")
    columns = {name: np.concatenate([np.zeros(0), *parts.pop(name)]) for name in names}
    return SwfLog(tuple(header), columns)


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines."""
    rest = b""
    with open_bytes(path) as stream:
        while block := stream.read(_CHUNK):
            block = rest + block
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            if cut:
                yield block[:cut]
            elif len(rest) > _CHUNK:
                raise InputError(str(path), "lines of 18 numbers", "a line of megabytes")
    if rest:
        yield rest + b"\n"


def _strip_comments(chunk: bytes, header: list[tuple[str, str]]) -> bytes:
    if b";" not in chunk:
        return chunk
    kept = []
    for line in chunk.split(b"\n"):
        if line.lstrip().startswith(b";"):
            key, colon, value = line.decode("latin-1").strip(" \t\r;").partition(":")
            if colon:
                header.append((key.strip(), value.strip()))
        else:
            kept.append(line)
    return b"\n".join(kept) + b"\n"


def _numbers(data: bytes) -> Floats | None:
    """Return the numbers of `data`, one row per line; None if a line does not have 18 numbers in their ranges."""
    if data.translate(None, _ALLOWED):
        return None
    text = np.frombuffer(data, dtype=np.uint8)
    starts = text > 32
    starts[1:] &= text[:-1] <= 32
    widths = np.diff(np.cumsum(starts, dtype=np.int32)[text == 10], prepend=0)
    rows = int(np.count_nonzero(widths))
    if not np.all((widths == 0) | (widths == WIDTH)):
        return None
    if rows == 0:
        return np.zeros((0, WIDTH))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            flat = np.fromstring(data, dtype=np.float64, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    if len(flat) != rows * WIDTH:
        return None
    table = flat.reshape(rows, WIDTH)
    if not np.all((table >= _LOW) & (table <= _HIGH)):
        return None
    whole = table[:, _WHOLE]
    return table if np.all(whole == np.floor(whole)) else None


def _blame(path: Path, chunk: bytes, first: int) -> InputError:
    """Return the error of the first line in `chunk` that does not have 18 numbers in their ranges."""
    for number, line in enumerate(chunk.split(b"\n"), start=first):
        text = line.decode("latin-1").strip(" \t\r")
        if text.startswith(";"):
            continue
        cells = text.split()
        if cells and len(cells) != WIDTH:
            return InputError(f"{path}, line {number}", f"{WIDTH} numbers", text)
        for field, cell in zip(FIELDS, cells, strict=False):
            try:
                parse_number(field, cell)
            except ValueError:
                return InputError(f"{path}, line {number}, field {field.name}", field.expected, cell)
    return InputError(f"{path}, from line {first} on", f"lines of {WIDTH} numbers")


_STATUS = NAMES.index("status")
_USED = (
    "job", "submit", "run", "allocated", "requested", "requested_time", "status", "user", "queue",
)  # fmt: skip


def parse(path: Path) -> Trace:
    """Read all jobs of the log. A job of p processors is a gang of p one-GPU pods without placement constraints.

    The allocated processors count, or the requested ones if those are unknown. Requested memory is ignored, because a
    cluster given as `NxG` has no memory limit. Jobs without a submission, a run time or a processor are left out, and
    so are the parts (status 2-4) of a job that has its own line; `notes` says how many. Raises InputError if the file
    is not such a log.
    """
    columns = read_log(path, _USED).columns
    processors = np.where(columns["allocated"] > 0, columns["allocated"], columns["requested"])
    known = (columns["submit"] >= 0) & (columns["run"] >= 0) & (processors > 0)
    part = (columns["status"] >= 2) & (columns["status"] <= 4)
    _check_once(path, columns["job"][~part])
    if part.any():
        part &= np.isin(columns["job"], columns["job"][~part])
    keep = known & ~part
    notes = []
    if dropped := int(np.count_nonzero(~known & ~part)):
        notes.append(f"{dropped} jobs dropped: no submission, run time or processor count")
    if parts := int(np.count_nonzero(part)):
        notes.append(f"{parts} lines dropped: parts of jobs that have a line of their own")
    kept = {name: columns.pop(name)[keep] for name in list(columns)}  # no column is in memory twice: logs are large
    n = len(kept["job"])
    limit = _microseconds(kept.pop("requested_time"))
    queue, queues = _numbered(kept.pop("queue"), "default")
    user, users = _numbered(kept.pop("user"), "")
    jobs = make_workload(
        path.name,
        _microseconds(kept.pop("submit")),
        _microseconds(kept.pop("run")),
        np.ones(n, dtype=np.int64),
        ids=_ids(kept.pop("job").astype(np.int64)),
        pods=processors[keep].astype(np.int64),
        limit=np.where(limit > 0, limit, -1),
        queue=queue,
        user=user,
        queues=queues,
        users=users,
        origin=0,
        notes=tuple(notes),
    )
    return Trace(jobs=jobs, slices=queue, names=queues, slice_kind="queue")


def _check_once(path: Path, numbers: Floats) -> None:
    """Raise InputError, which names the line, if a job number occurs a second time."""
    if len(np.unique(numbers)) == len(numbers):
        return
    seen: set[int] = set()
    with open_bytes(path) as stream:
        for line, text in enumerate(stream, 1):
            cells = text.split()
            if not cells or cells[0].startswith(b";") or 2 <= float(cells[_STATUS]) <= 4:
                continue
            number = int(float(cells[0]))
            if number in seen:
                raise InputError(f"{path}, line {line}, field job", "a job number that no other line has", str(number))
            seen.add(number)


def _microseconds(seconds: Floats) -> Ints:
    whole = np.floor(seconds)
    fraction = np.rint((seconds - whole) * SECOND)
    return whole.astype(np.int64) * SECOND + fraction.astype(np.int64)


def _numbered(column: Floats, unknown: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return codes of a column of numbers, in order of first appearance. The name for -1 is `unknown`."""
    values, first, inverse = np.unique(column.astype(np.int64), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    names = tuple(unknown if value < 0 else str(value) for value in values[order].tolist())
    return rank[inverse].astype(np.int32), names


def _ids(numbers: Ints) -> list[str]:
    """Return job numbers as texts. Repeated numbers (of jobs of which only the parts have lines) get a suffix."""
    if len(np.unique(numbers)) == len(numbers):
        parts = np.split(numbers, range(_IDS, len(numbers), _IDS))  # in parts, so that texts lie close in memory
        return [str(number) for part in parts for number in part.tolist()]
    seen: dict[int, int] = {}
    ids = []
    for number in numbers.tolist():
        seen[number] = times = seen.get(number, 0) + 1
        ids.append(str(number) if times == 1 else f"{number}.{times}")
    return ids
