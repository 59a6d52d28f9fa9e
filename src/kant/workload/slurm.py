"""Slurm's accounting as printed by `sacct -P`: a line per job, columns separated by '|', named by the first line.

Columns and their formats are those of sacct(1) of Slurm 24.05. A job's nodes are the pods of a gang.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from kant.files import open_text
from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.table import MAX_GPUS, MAX_TIME, MAX_WHOLE, coded
from kant.workload.workload import Workload, make_workload

COMMAND = (
    "sacct -a -X -P -S 2026-10-01 -E now --units=M "
    "-o JobID,User,Account,Partition,Submit,Eligible,Start,Elapsed,Timelimit,State,NNodes,AllocTRES,JobName"
)
"""A command that prints a trace with all columns that `read_sacct` uses."""

QUEUES = ("Account", "Partition", "QOS")
NEEDED = ("JobID", "Submit", "Elapsed", "State", "AllocTRES")

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.(\d+))?")
_MEMORY = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NEVER = ("", "Unknown", "None", "N/A")


@dataclass(frozen=True, slots=True)
class _Job:
    id: str
    submit: int
    runtime: int
    limit: int
    gpus: int
    nodes: int
    cpu: int
    memory: int
    queue: str
    user: str
    title: str


def read_sacct(path: Path, *, queue: str | None = None, cpu_jobs: bool = False) -> Workload:
    """Read the accounted jobs that ran, in order of submission. `notes` says what was left out.

    `queue` is the column of QUEUES that names a job's queue (None: the first that is present). Jobs without GPUs are
    left out unless `cpu_jobs`. A job that could not start when it was submitted, such as one with a dependency, counts
    as submitted when it became `Eligible`. A job that still runs counts with its run time so far. Raises InputError,
    which names the line and the invalid column.
    """
    left_out: Counter[str] = Counter()
    jobs = sorted(_jobs(path, queue, cpu_jobs, left_out), key=lambda job: job.submit)
    if not jobs:
        what = "; ".join(f"{count} {why}" for why, count in left_out.items()) or "no job"
        raise InputError(str(path), "at least one job that ran" + ("" if cpu_jobs else " on a GPU"), what)
    return workload_of(path.name, jobs, tuple(f"{count} {why}" for why, count in left_out.items()))


def workload_of(name: str, jobs: list[_Job], notes: tuple[str, ...]) -> Workload:
    """Return the workload of these jobs, which are in order of submission."""
    queue, queues = coded([job.queue or "default" for job in jobs])
    user, users = coded([job.user for job in jobs])
    title, titles = coded([job.title for job in jobs])
    columns = {
        field: np.array([getattr(job, field) for job in jobs], dtype=np.int64)
        for field in ("submit", "runtime", "limit", "gpus", "nodes", "cpu", "memory")
    }
    even = columns["gpus"] % columns["nodes"] == 0  # otherwise only the total is known
    pods = np.where(even, columns["nodes"], 0)
    parts = np.where(even, columns["nodes"], 1)
    first = int(columns["submit"][0])
    return make_workload(
        name,
        columns["submit"] - first,
        columns["runtime"],
        columns["gpus"] // parts,
        ids=[job.id for job in jobs],
        pods=pods,
        cpu=-(-columns["cpu"] // columns["nodes"]),
        memory=-(-columns["memory"] // columns["nodes"]),
        limit=columns["limit"],
        queue=queue,
        queues=queues,
        user=user,
        users=users,
        title=title,
        titles=titles,
        origin=first,
        notes=notes,
    )


def _jobs(path: Path, queue: str | None, cpu_jobs: bool, left_out: Counter[str]) -> Iterator[_Job]:
    seen: Counter[str] = Counter()
    for line, cells in _lines(path):
        if "." in cells["JobID"]:
            continue  # a step of a job that has a line of its own
        where = f"{path}, line {line}"
        state = cells["State"].partition(" ")[0]
        runtime = _read(where, cells, "Elapsed", _duration)
        if runtime <= 0 or cells["Submit"] in _NEVER:
            left_out["jobs left out: they never ran"] += 1
            continue
        gpus = _read(where, cells, "AllocTRES", _gpus, MAX_GPUS)
        if not gpus and not cpu_jobs:
            left_out["jobs left out: they have no GPU"] += 1
            continue
        if state in ("RUNNING", "SUSPENDED"):
            left_out["jobs still run: they count with their run time so far"] += 1
        seen[cells["JobID"]] += 1
        number = seen[cells["JobID"]]
        submit = _read(where, cells, "Submit", _moment)
        if cells.get("Eligible", "") not in _NEVER:
            submit = max(submit, _read(where, cells, "Eligible", _moment))
        yield _Job(
            id=cells["JobID"] if number == 1 else f"{cells['JobID']}.{number}",
            submit=submit,
            runtime=runtime,
            limit=_read(where, cells, "Timelimit", _limit) if "Timelimit" in cells else -1,
            gpus=gpus,
            nodes=max(_read(where, cells, "NNodes", int, MAX_GPUS) if cells.get("NNodes") else 1, 1),
            cpu=_read(where, cells, "AllocTRES", _cpu, MAX_WHOLE),
            memory=_read(where, cells, "AllocTRES", _memory, MAX_WHOLE),
            queue=next((cells[name] for name in (queue and (queue,)) or QUEUES if name in cells), ""),
            user=cells.get("User", ""),
            title=cells.get("JobName", ""),
        )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the cells of each line by column name, with the line number."""
    with open_text(path) as stream:
        header = stream.readline().rstrip("\r\n").rstrip("|").split("|")
        missing = [name for name in NEEDED if name not in header]
        if missing:
            raise InputError(f"{path}, line 1", f"what `{COMMAND}` prints: the columns {', '.join(missing)}", header)
        for line, text in enumerate(stream, start=2):
            row = text.rstrip("\r\n")
            if not row:
                continue
            cells = row.split("|", len(header) - 1)  # the last column, such as JobName, may hold a '|'
            if len(cells) != len(header):
                raise InputError(f"{path}, line {line}", f"{len(header)} columns", len(cells))
            yield line, dict(zip(header, cells, strict=True))


def _read(where: str, cells: dict[str, str], name: str, parse: Callable[[str], int], most: int = MAX_TIME) -> int:
    try:
        value = parse(cells[name])
    except (ValueError, InvalidOperation, OverflowError):
        raise InputError(f"{where}, column {name}", "what sacct prints there", cells[name]) from None
    if not -1 <= value <= most:
        raise InputError(f"{where}, column {name}", f"at most {most}", cells[name])
    return value


def _moment(text: str) -> int:
    """Return an ISO date (taken as UTC) or seconds (SLURM_TIME_FORMAT=%s) in microseconds since 1970."""
    if text.isascii() and text.isdecimal():
        return int(text) * SECOND
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp()) * SECOND


def _duration(text: str) -> int:
    """Return a duration `[DD-[HH:]]MM:SS` in microseconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        if text in _NEVER:
            return 0
        raise ValueError
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * SECOND


def _limit(text: str) -> int:
    """Return a run-time limit; -1 if there is none, or if it is that of the partition."""
    return -1 if text in (*_NEVER, "UNLIMITED", "INVALID", "Partition_Limit") else _duration(text)


def _tres(text: str) -> dict[str, str]:
    """Parse the trackable resources: `cpu=64,mem=480G,gres/gpu=8`."""
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _gpus(text: str) -> int:
    """Return the GPUs of all nodes together: the sum over GPU types if Slurm prints no total."""
    tres = _tres(text)
    if "gres/gpu" in tres:
        return int(tres["gres/gpu"])
    return sum(int(count) for name, count in tres.items() if name.startswith("gres/gpu:"))


def _cpu(text: str) -> int:
    """Return the cores of all nodes together, in thousandths of a core."""
    return int(_tres(text).get("cpu", "0")) * 1000


def _memory(text: str) -> int:
    """Return the MiB of all nodes together, from an amount such as `480G` or `1.5T`."""
    amount = _tres(text).get("mem", "0")
    unit = amount[-1:] if amount[-1:] in "KMGTP" else ""
    return math.ceil(float(Decimal(amount.removesuffix(unit))) * _MEMORY[unit])
