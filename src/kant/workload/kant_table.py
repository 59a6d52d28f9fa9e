"""Kant's own trace table: its columns, which are the same in CSV and Parquet, and their meaning in a Workload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kant.files import head
from kant.model.errors import InputError
from kant.model.job import LEVELS
from kant.model.mig import PROFILES
from kant.model.precedence import order_of
from kant.model.training import Training
from kant.model.units import GPU, SECOND
from kant.workload.kant_parquet_process import read_parquet
from kant.workload.openb import model_set
from kant.workload.table import MAX_GPUS, MAX_TIME, MAX_WHOLE, Field, Ints, Table, check_once, coded, read_table
from kant.workload.trace import Trace
from kant.workload.training_text import parse_training, training_text
from kant.workload.workload import Workload, make_workload

PARQUET_MAGIC = b"PAR1"

FIELDS = (
    Field("submit_s", "seconds", "submission in decimal seconds, exact to the microsecond", high=MAX_TIME),
    Field("runtime_s", "seconds", "run time in decimal seconds", high=MAX_TIME),
    Field("gpus", "whole", "GPUs per pod, or of the whole job where `pods` is 0", high=MAX_GPUS),
    Field("pods", "whole", "pods of the gang; 0: only the total is known", high=MAX_GPUS, default=0),
    Field("floor", "whole", "the fewest pods with which an elastic gang runs; 0: it needs all of `pods`", high=MAX_GPUS,
          default=0),
    Field("gpu_milli", "whole", "thousandths of each GPU; below 1000: a share", low=1, high=GPU, default=GPU),
    Field("cpu_milli", "whole", "thousandths of a core per pod", high=MAX_WHOLE, default=0),
    Field("memory_mib", "whole", "memory per pod in MiB", high=MAX_WHOLE, default=0),
    Field("limit_s", "seconds", "the user's run-time limit; empty: none", high=MAX_TIME, default=-1),
    Field("due_s", "seconds", "when the job should be done, on the clock of submissions; empty: no such time",
          high=2 * MAX_TIME, default=-1),
    Field("priority", "whole", "a higher one goes first", low=-(10**9), high=10**9, default=0),
    Field("overhead_s", "seconds", "seconds that the interval-overhead speed model charges", high=MAX_TIME,
          default=0),
    Field("queue", "text", "queue", default="default"),
    Field("user", "text", "who submitted it", default=""),
    Field("name", "text", "what its owner calls the job; jobs of one name probably run equally long", default=""),
    Field("core", "text", "identifier of the job that this one is a burst of; empty: none", default=""),
    Field("after", "text", "identifiers of jobs that must succeed before it arrives, separated by '|'; empty: none",
          default=""),
    Field("preemptible", "whole", "0: the scheduler may not stop it", high=1, default=1),
    Field("within", "text", "level of the fabric of which one domain should hold the gang; empty: none", default=""),
    Field("within_required", "whole", "1: the job waits until one domain of that level holds it", high=1, default=0),
    Field("one_island", "whole", "1: the GPUs of each pod must lie in one NVLink island", high=1, default=0),
    Field("mig", "text", "MIG profile of which each pod wants one instance, such as 1g.10gb; empty: none", default=""),
    Field("segment", "whole", "the number of consecutive pods in one domain of `segment_within`; 0: no segments",
          high=MAX_GPUS, default=0),
    Field("segment_within", "text", "level of the fabric of the segments; empty: none", default=""),
    Field("affinity_group", "text", "jobs to which `apart` and `near` apply; empty: none", default=""),
    Field("apart", "text", "level of which no domain should hold two pods of the job, or of its affinity group; empty:"
          " none", default=""),
    Field("apart_required", "whole", "1: the job waits until its pods can be kept apart", high=1, default=0),
    Field("near", "text", "level of which a domain with its affinity group is preferred; empty: none", default=""),
    Field("training", "text", "what it trains, and how it is laid out (docs/step-time.md); empty: not described",
          default=""),
    Field("gpu_models", "text", "GPU models allowed, separated by '|'; empty: any", default=""),
    Field("id", "text", "identifier, unique in the file; the column absent: the row number from 0"),
)  # fmt: skip
"""The columns after `id`, in the order in which they are written."""

_OPTIONAL_ID = tuple(field for field in FIELDS if field.name != "id")
_COLUMN = {
    "pods": "pods", "gpu_milli": "milli", "cpu_milli": "cpu", "memory_mib": "memory", "limit_s": "limit",
    "due_s": "due", "priority": "priority", "overhead_s": "overhead", "preemptible": "preemptible",
    "within_required": "within_required", "one_island": "island", "segment": "segment",
    "apart_required": "apart_required", "floor": "floor",
}  # fmt: skip


def parse(path: Path) -> Trace:
    """Read all jobs of a CSV or Parquet file. The slice is the queue.

    Raises InputError if a column is missing or unknown, a cell is invalid, an identifier occurs twice, or a job has too
    many GPUs.
    """
    content = head(path)
    if content.startswith(PARQUET_MAGIC):
        table = read_parquet(path)
    else:
        first = content.decode("utf-8", "replace").split("\n", 1)[0]
        has_id = "id" in [name.strip(' "\r\ufeff') for name in first.split(",")]
        table = read_table(path, FIELDS if has_id else _OPTIONAL_ID, strict=True)
    return Trace(**trace_of(path, table))  # type: ignore[arg-type]


def trace_of(path: Path, table: Table) -> dict[str, object]:
    """Return the arguments of `Trace` for a table with these columns; `path` is for errors. Raises InputError."""
    numbers, n = table.numbers, table.rows
    ids = table.texts.get("id")
    if ids is None:
        ids = [str(i) for i in range(n)]
    else:
        check_once(path, "id", ids, "each identifier once", table.place)
    many = np.flatnonzero(numbers["gpus"] * np.maximum(numbers["pods"], 1) > MAX_GPUS)
    if len(many):
        where = f"{path}, job {ids[many[0]]}, fields gpus and pods"
        raise InputError(where, f"at most {MAX_GPUS} GPUs in a job")
    over = np.flatnonzero(numbers["floor"] > numbers["pods"])
    if len(over):
        row = int(over[0])
        where = f"{path}, job {ids[row]}, field floor"
        raise InputError(where, f"at most its {int(numbers['pods'][row])} pods", int(numbers["floor"][row]))
    mig, profiles = _profiles(path, ids, table)
    within = _levels(path, ids, "within", table.texts.get("within"))
    segment_within = _levels(path, ids, "segment_within", table.texts.get("segment_within"))
    apart = _levels(path, ids, "apart", table.texts.get("apart"))
    near = _levels(path, ids, "near", table.texts.get("near"))
    affinity, affinities = coded(table.texts.get("affinity_group", [""] * n))
    named = _named(affinity, affinities)
    elastic = (numbers["floor"] > 0) & (numbers["floor"] < numbers["pods"])
    for wrong, fields, expected in (
        ((near > 0) & ~named, "near and affinity_group", "the name of a group if near is given"),
        ((apart > 0) & (segment_within > 0), "apart and segment", "one of them"),
        (elastic & _named(mig, profiles), "floor and mig", "one of them"),
        (elastic & (segment_within > 0), "floor and segment", "one of them"),
        (elastic & (apart > 0), "floor and apart", "one of them"),
        (elastic & named, "floor and affinity_group", "one of them"),
    ):
        if wrong.any():
            raise InputError(f"{path}, job {ids[int(np.argmax(wrong))]}, fields {fields}", expected)
    halves = np.flatnonzero((numbers["segment"] > 0) != (segment_within > 0))
    if len(halves):
        where = f"{path}, job {ids[halves[0]]}, fields segment and segment_within"
        raise InputError(where, "both or neither")
    base = _bases(path, ids, table.texts.get("core"), numbers["submit_s"])
    queue, queues = coded(table.texts.get("queue", ["default"] * n))
    user, users = coded(table.texts.get("user", [""] * n))
    title, titles = coded(table.texts.get("name", [""] * n))
    training, words = coded(table.texts.get("training", [""] * n))
    models, sets = coded(table.texts.get("gpu_models", [""] * n))
    jobs = make_workload(
        path.name,
        numbers["submit_s"],
        numbers["runtime_s"],
        numbers["gpus"],
        ids=ids,
        queue=queue,
        queues=queues,
        user=user,
        users=users,
        title=title,
        titles=titles,
        models=models,
        base_job=base,
        after=_afters(path, ids, table.texts.get("after"), base),
        within=within,
        mig=mig,
        profiles=profiles,
        segment_within=segment_within,
        affinity=affinity,
        affinities=affinities,
        apart=apart,
        near=near,
        training=training,
        trainings=_trainings(path, ids, training, words),
        model_sets=tuple(model_set(text) for text in sets),
        origin=0,
        **{column: numbers[name] for name, column in _COLUMN.items()},
    )
    return {"jobs": jobs, "slices": queue, "names": queues}


def _trainings(path: Path, ids: list[str], codes: Ints, words: tuple[str, ...]) -> tuple[Training | None, ...]:
    """Return the training for each code of `words`. An error names the first job with the invalid words."""
    found: list[Training | None] = []
    for code, text in enumerate(words):
        where = f"{path}, job {ids[int(np.argmax(codes == code))]}, field training" if text else ""
        found.append(parse_training(where, text))
    return tuple(found)


def _named(codes: Ints, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return which jobs have a name that is not empty."""
    return (
        np.array([bool(name) for name in names], dtype=np.bool_)[codes] if len(codes) else np.zeros(0, dtype=np.bool_)
    )


def _levels(path: Path, ids: list[str], field: str, names: list[str] | None) -> Ints:
    """Return the code of each job's level: 0 for none, otherwise 1 + its index in LEVELS."""
    codes = {"": 0} | {level: code for code, level in enumerate(LEVELS, start=1)}
    for row, name in enumerate(names or ()):
        if name not in codes:
            raise InputError(f"{path}, job {ids[row]}, field {field}", f"{', '.join(LEVELS)}, or nothing", name)
    return np.array([codes[name] for name in names or [""] * len(ids)], dtype=np.int64)


def _profiles(path: Path, ids: list[str], table: Table) -> tuple[Ints, tuple[str, ...]]:
    """Return each job's MIG profile as a code. A job with a profile must request one whole device, not a share."""
    names = table.texts.get("mig", [""] * table.rows)
    for row, name in enumerate(names):
        if not name:
            continue
        where = f"{path}, job {ids[row]}, field mig"
        if name not in PROFILES:
            raise InputError(where, "a MIG profile such as 1g.10gb or 3g.40gb, or nothing", name)
        if (table.numbers["gpus"][row], table.numbers["gpu_milli"][row]) != (1, GPU):
            raise InputError(where, "gpus 1 and gpu_milli 1000 with a MIG profile: a pod gets one instance")
    return coded(names)


def _bases(path: Path, ids: list[str], names: list[str] | None, submit: Ints) -> Ints:
    """Return the row of each job's base job (-1: none). A base job is not a replica, and precedes its replicas."""
    base = np.full(len(ids), -1, dtype=np.int64)
    if names is None or not any(names):
        return base
    rows = {name: row for row, name in enumerate(ids)}
    for row, name in enumerate(names):
        if not name:
            continue
        where = f"{path}, job {ids[row]}, field core"
        if name not in rows:
            raise InputError(where, "the identifier of a job of the file, or nothing", name)
        base[row] = rows[name]
        if names[rows[name]]:
            raise InputError(where, "a job that is not a burst replica itself", name)
        if (submit[rows[name]], rows[name]) >= (submit[row], row):
            raise InputError(where, "a job that is submitted before this one", name)
    return base


def _afters(path: Path, ids: list[str], names: list[str] | None, base: Ints) -> Ints:
    """Return a row for each dependency: the rows of the two jobs. Neither job is or has a burst replica."""
    found: list[tuple[int, int]] = []
    rows = {name: row for row, name in enumerate(ids)} if names is not None and any(names) else {}
    bursts = {*np.flatnonzero(base >= 0).tolist(), *base[base >= 0].tolist()} if rows else set()
    waits: list[list[str]] = []
    for row, text in enumerate(names or () if rows else ()):
        where = f"{path}, job {ids[row]}, field after"
        waits.append(list(dict.fromkeys(text.split("|"))) if text else [])
        for name in waits[-1]:
            if name not in rows:
                raise InputError(where, "identifiers of jobs of the file, or nothing", name)
            if row in bursts or rows[name] in bursts:
                raise InputError(where, "jobs that neither are nor have burst replicas", name)
            found.append((row, rows[name]))
    if found:
        involved = sorted({row for pair in found for row in pair})
        _, circle = order_of([ids[row] for row in involved], [waits[row] for row in involved])
        if circle:
            where = f"{path}, job {circle[0]}, field after"
            raise InputError(
                where, "jobs that do not wait for each other in a cycle", " -> ".join([*circle, circle[0]])
            )
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def to_table(workload: Workload) -> Table:
    """Return the columns of a workload, with submissions on the trace's own clock (`submit` + `origin`).

    Raises InputError if the name of a GPU model contains a '|', or a value is out of its column's range.
    """
    texts: dict[str, list[str]] = {"id": workload.ids}
    texts["core"] = [workload.ids[row] if row >= 0 else "" for row in workload.base_job.tolist()]
    texts["after"] = _after_texts(workload)
    for name in ("within", "segment_within", "apart", "near"):
        texts[name] = [("", *LEVELS)[code] for code in getattr(workload, name).tolist()]
    for name, codes, names in (
        ("queue", workload.queue, workload.queues),
        ("user", workload.user, workload.users),
        ("name", workload.title, workload.titles),
        ("mig", workload.mig, workload.profiles),
        ("affinity_group", workload.affinity, workload.affinities),
        ("training", workload.training, tuple(map(training_text, workload.trainings))),
        ("gpu_models", workload.models, tuple(_joined(names) for names in workload.model_sets)),
    ):
        texts[name] = [names[code] for code in codes.tolist()]
    numbers = {name: getattr(workload, column) for name, column in _COLUMN.items()}
    numbers |= {
        "submit_s": workload.submit + workload.origin,
        "runtime_s": workload.runtime,
        "gpus": workload.gpus,
    }
    numbers["due_s"] = np.where(workload.due >= 0, workload.due + workload.origin, -1)
    for field in FIELDS:
        if field.kind != "text" and len(workload):
            column = numbers[field.name]
            allowed = (column >= field.low) & (column <= field.high) | (column == field.default)
            if not allowed.all():
                job = workload.ids[int(np.argmin(allowed))]
                raise InputError(f"job {job}, field {field.name}", field.expected, int(column[np.argmin(allowed)]))
    return Table(len(workload), numbers, texts)


def _after_texts(workload: Workload) -> list[str]:
    names: list[list[str]] = [[]] * len(workload) if not len(workload.after) else [[] for _ in workload.ids]
    for row, other in workload.after.tolist():
        if "|" in workload.ids[other]:
            raise InputError(f"job {workload.ids[row]}, field after", "names that hold no '|'", workload.ids[other])
        names[row].append(workload.ids[other])
    return ["|".join(each) for each in names]


def _joined(models: tuple[str, ...]) -> str:
    for model in models:
        if "|" in model or not model:
            raise InputError("field gpu_models", "names that are not empty and hold no '|'", model)
    return "|".join(models)


def seconds_text(us: int) -> str:
    """Return a time of at least zero as decimal seconds without trailing zeros: 1500000 becomes `1.5`."""
    whole, fraction = divmod(us, SECOND)
    return f"{whole}.{fraction:06d}".rstrip("0") if fraction else str(whole)
