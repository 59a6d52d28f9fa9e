"""A Workload: the jobs that will arrive, in columns, with run times that only a simulator knows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.model.training import Training

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`n` jobs in order of submission (equal ones in file order). All columns have length `n`. Times are microseconds.

    `pods` is 0 if the trace gives only a total: then `gpus` is that total, and the simulator shapes the gang to the
    cluster's nodes. Otherwise `gpus` is per pod. `milli`, `cpu` and `memory` are per pod (`milli`: per GPU). `limit` is
    the user's run-time limit, `due` the time by which the job should end (-1: none). `overhead` is the time that the
    speed model of interval overhead adds. `queue`, `user`, `title` (the owner's name for the job) and `models` are
    codes into `queues`, `users`, `titles` and `model_sets`. `base_job` is the row, which comes earlier, of the job
    whose burst replica this is (-1: none). `preemptible` is 0 if the scheduler may not stop the job. `within` is the
    fabric level at which one domain should contain the gang (1 + its index in LEVELS, 0: none); `within_required` is 1
    if one must. `island` is 1 if the GPUs of each pod must be in one NVLink island. `mig` is a code into `profiles`:
    the MIG profile of which each pod requests one instance (empty: none; otherwise `gpus` is 1 and `milli` 1000).
    `segment` consecutive pods must be in one domain of the level `segment_within` (0 and 0: none). `affinity` is the
    affinity group (a code into `affinities`); `apart`, `apart_required` and `near` are the constraints relative to it,
    with levels as in `within`. `floor` is the minimum number of pods of an elastic gang (0: all pods). `training` is
    what a job trains (a code into `trainings`; None: unknown). `after` has a row for each dependency: the rows of a job
    and of the job that must succeed before it arrives. `origin` is time zero on the trace's own clock: the first
    submission that the window keeps, before slicing.
    """

    name: str
    ids: list[str]
    submit: Ints
    runtime: Ints
    gpus: Ints
    pods: Ints
    milli: Ints
    cpu: Ints
    memory: Ints
    limit: Ints
    due: Ints
    priority: Ints
    overhead: Ints
    queue: Ints
    user: Ints
    title: Ints
    models: Ints
    base_job: Ints
    preemptible: Ints
    within: Ints
    within_required: Ints
    island: Ints
    mig: Ints
    segment: Ints
    segment_within: Ints
    affinity: Ints
    apart: Ints
    apart_required: Ints
    near: Ints
    floor: Ints
    training: Ints
    queues: tuple[str, ...] = ("default",)
    users: tuple[str, ...] = ("",)
    titles: tuple[str, ...] = ("",)
    model_sets: tuple[tuple[str, ...], ...] = ((),)
    profiles: tuple[str, ...] = ("",)
    affinities: tuple[str, ...] = ("",)
    trainings: tuple[Training | None, ...] = (None,)
    after: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    origin: int = 0
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.submit)

    @property
    def total_gpus(self) -> Ints:
        """Return the whole GPUs of each job over all its pods; a share counts as one."""
        return self.gpus * np.maximum(self.pods, 1)

    def take(self, rows: Ints | NDArray[np.bool_]) -> Workload:
        """Return the jobs at `rows` (indices or a mask), in that order. A replica without its base job becomes an
        ordinary job. Dependencies on missing jobs are dropped."""
        index: Ints = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64, copy=False)
        columns: dict[str, Any] = {name: _taken(getattr(self, name), index) for name in COLUMNS}
        if (columns["base_job"] >= 0).any():
            place = np.full(len(self) + 1, -1, dtype=np.int64)  # the last entry is for jobs without a base job
            place[index] = np.arange(len(index))
            columns["base_job"] = place[columns["base_job"]]
        if len(self.after):
            moved = np.full(len(self), -1, dtype=np.int64)
            moved[index] = np.arange(len(index))
            waits = moved[self.after]
            columns["after"] = waits[(waits >= 0).all(axis=1)]
        return replace(self, ids=[self.ids[i] for i in index], **columns)


COLUMNS = (
    "submit", "runtime", "gpus", "pods", "milli", "cpu", "memory", "limit", "due", "priority", "overhead",
    "queue", "user", "title", "models", "base_job", "preemptible", "within", "within_required", "island", "mig",
    "segment", "segment_within", "affinity", "apart", "apart_required", "near", "floor", "training",
)  # fmt: skip


@lru_cache(maxsize=1024)
def _same(value: int, length: int) -> Ints:
    """Return a column of one value for all jobs, stored once and read-only."""
    return np.broadcast_to(np.int64(value), length)


def only_value(column: Ints) -> int | None:
    """Return the value of all jobs if the column is stored once; otherwise None."""
    return int(column[0]) if column.strides == (0,) and len(column) else None


def _once(column: Ints) -> Ints:
    """Return the same column, stored once if all jobs have the same value."""
    return _same(int(column[0]), len(column)) if len(column) and (column == column[0]).all() else column


def _taken(column: Ints, index: Ints) -> Ints:
    value = only_value(column)
    return column[index] if value is None else _same(value, len(index))


def make_workload(name: str, submit: Ints, runtime: Ints, gpus: Ints, **columns: object) -> Workload:
    """Return a Workload. Omitted columns get defaults: whole GPUs, no CPU or memory, one queue, no limit."""
    n = len(submit)
    defaults: dict[str, int] = {
        "pods": 0, "milli": 1000, "cpu": 0, "memory": 0, "limit": -1, "due": -1, "priority": 0,
        "overhead": 0, "queue": 0, "user": 0, "title": 0, "models": 0, "base_job": -1, "preemptible": 1,
        "within": 0, "within_required": 0, "island": 0, "mig": 0, "segment": 0, "segment_within": 0,
        "affinity": 0, "apart": 0, "apart_required": 0, "near": 0, "floor": 0, "training": 0,
    }  # fmt: skip
    filled: dict[str, object] = {key: _same(value, n) for key, value in defaults.items()}
    filled |= {key: _once(value) if key in COLUMNS else value for key, value in columns.items()}  # type: ignore[arg-type]
    filled.setdefault("ids", [str(i) for i in range(n)])
    filled.setdefault("origin", int(submit[0]) if n else 0)
    return Workload(name=name, submit=submit, runtime=runtime, gpus=_once(gpus), **filled)  # type: ignore[arg-type]
