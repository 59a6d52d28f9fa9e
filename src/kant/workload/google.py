"""Google's cluster trace of 2019: a part of the table `instance_events`, as BigQuery exports it: JSON lines or CSV.

Tirmazi et al., "Borg: the Next Generation", EuroSys'20; columns are those of clusterdata_trace_format_v3.proto
(google/cluster-data, CC-BY-4.0). The trace gives resources as fractions of its largest machine, and has no GPUs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from kant.files import head, open_text
from kant.model.errors import InputError
from kant.workload.table import MAX_TIME, Field, coded
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

CORES, MEMORY_MIB = 100, 1 << 20
"""The assumed capacity of a machine of size 1, which the trace does not give."""
TYPES = (
    "SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING",
    "UPDATE_RUNNING",
)  # fmt: skip
ENDS = {"EVICT", "FAIL", "FINISH", "KILL", "LOST"}
TIERS = ((360, "monitoring"), (120, "production"), (116, "mid"), (100, "batch"), (0, "free"))
"""The lowest priority of each tier (Tirmazi et al., section 2)."""
BEYOND = 2**63 - 1
"""The time of events after the end of the trace."""

FIELDS = (
    Field("time", "whole", "microseconds since the trace began"),
    Field("type", "text", "the type of the event, by number or name"),
    Field("collection_id", "whole", "the job that the task belongs to"),
    Field("instance_index", "whole", "the number of the task in its job"),
    Field("priority", "whole", "priority, kept; its tier is the queue", default=0),
    Field("collection_type", "text", "0 for jobs; reservations (1) are left out", default="0"),
    Field("resource_request.cpus", "text", "part of the largest machine", default="0"),
    Field("resource_request.memory", "text", "part of the largest machine", default="0"),
)


@dataclass(slots=True)
class _Task:
    submit: int
    priority: int
    cpus: float
    memory: float
    began: int = -1
    ran: int = 0


def looks_so(text: str) -> bool:
    """Return whether the beginning of a file looks like instance events."""
    first = text.split("\n", 1)[0]
    return "collection_id" in first and "instance_index" in first


def parse(path: Path) -> Trace:
    """Read each task that ran as a job of one pod without GPUs. Queue and slice are the tier of its priority.

    Its run time is the total time for which it was scheduled, without the time between evictions. A task that still
    runs at the end of the slice counts with its run time so far. A machine of size 1 is assumed to have 100 cores and 1
    TiB. Raises InputError, which names the line and the field, if the file is not such a table.
    """
    tasks: dict[tuple[int, int], _Task] = {}
    last = 0
    for line, event in _events(path):
        time, kind, key, priority, cpus, memory = _read(path, line, event)
        if str(event.get("collection_type") or "0") in ("1", "ALLOC_SET") or time == BEYOND:
            continue
        last = max(last, time)
        task = tasks.setdefault(key, _Task(time, priority, cpus, memory))
        if kind == "SCHEDULE":
            task.began = time
        elif kind in ENDS and task.began >= 0:
            task.ran += time - task.began
            task.began = -1
    still = 0
    for task in tasks.values():
        if task.began >= 0:
            still += 1
            task.ran += last - task.began
    found = [(key, task) for key, task in tasks.items() if task.ran > 0]
    notes = [f"{len(tasks) - len(found)} tasks left out: they never ran"] if len(found) < len(tasks) else []
    notes += [f"{still} tasks still run: they count with their run time so far"] if still else []
    return _trace(path, found, tuple(notes))


def _trace(path: Path, found: list[tuple[tuple[int, int], _Task]], notes: tuple[str, ...]) -> Trace:
    queue, queues = coded([next(name for least, name in TIERS if task.priority >= least) for _, task in found])
    title, titles = coded([str(job) for (job, _), _ in found])

    def column(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    jobs = make_workload(
        path.name,
        column([task.submit for _, task in found]),
        column([task.ran for _, task in found]),
        column([0] * len(found)),
        ids=[f"{job}/{index}" for (job, index), _ in found],
        pods=column([1] * len(found)),
        cpu=column([round(task.cpus * CORES * 1000) for _, task in found]),
        memory=column([round(task.memory * MEMORY_MIB) for _, task in found]),
        priority=column([task.priority for _, task in found]),
        queue=queue,
        queues=queues or ("default",),
        title=title,
        titles=titles or ("",),
        origin=0,
        notes=notes,
    )
    return Trace(jobs=jobs, slices=queue, names=queues, slice_kind="tier")


Event = dict[str, object]


def _events(path: Path) -> Iterator[tuple[int, Event]]:
    """Yield the events with their line numbers. Columns of a record are joined by a dot, as BigQuery names them."""
    if head(path).lstrip().startswith(b"{"):
        with open_text(path) as stream:
            for line, text in enumerate(stream, start=1):
                if text.strip():
                    yield line, _flat(path, line, text)
        return
    with open_text(path) as stream:
        reader = csv.reader(stream, strict=True)
        try:
            header = [name.strip().replace("resource_request_", "resource_request.") for name in next(reader, [])]
            for row in reader:
                if len(row) != len(header):
                    raise InputError(f"{path}, line {reader.line_num}", f"{len(header)} cells", len(row))
                yield reader.line_num, dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}", "a row of CSV", str(error)) from error


def _flat(path: Path, line: int, text: str) -> Event:
    try:
        event = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise InputError(f"{path}, line {line}", f"an object of JSON ({error})") from None
    request = event.pop("resource_request", None)
    if isinstance(request, dict):
        event |= {f"resource_request.{name}": value for name, value in request.items()}
    return event


def _read(path: Path, line: int, event: Event) -> tuple[int, str, tuple[int, int], int, float, float]:
    where = f"{path}, line {line}, field "
    time = _whole(where, event, "time", BEYOND)
    kind = str(event.get("type"))
    kind = TYPES[int(kind)] if kind.isascii() and kind.isdecimal() and int(kind) < len(TYPES) else kind
    if kind not in TYPES:
        raise InputError(f"{where}type", f"one of {', '.join(TYPES)}, or its number", event.get("type"))
    if time > MAX_TIME and time != BEYOND:
        raise InputError(f"{where}time", f"microseconds up to {MAX_TIME}", time)
    key = (_whole(where, event, "collection_id", 2**63 - 1), _whole(where, event, "instance_index", 10**9))
    priority = _whole(where, event, "priority", 10**6) if event.get("priority") not in (None, "") else 0
    cpus, memory = (_part(where, event, f"resource_request.{name}") for name in ("cpus", "memory"))
    return time, kind, key, priority, cpus, memory


def _whole(where: str, event: Event, name: str, high: int) -> int:
    """Return a whole number. BigQuery writes 64-bit integers as text."""
    text = str(event.get(name, ""))
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= high):
        raise InputError(f"{where}{name}", f"a whole number from 0 to {high}", event.get(name))
    return int(text)


def _part(where: str, event: Event, name: str) -> float:
    value = event.get(name)
    if value in (None, ""):
        return 0.0
    try:
        part = float(str(value))
    except ValueError:
        part = -1.0
    if not 0 <= part <= 100:
        raise InputError(f"{where}{name}", "a part of the largest machine", value)
    return part
