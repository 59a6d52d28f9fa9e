"""Alibaba's PAI: `pai_task_table.csv` of cluster-trace-gpu-v2020, joined with `pai_job_table.csv` in the same folder.

Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters", NSDI'22
(alibaba/clusterdata). The files have no header; columns are those of the `.header` files and the README.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from kant.files import head
from kant.model.units import GPU
from kant.workload.logged import left_out
from kant.workload.table import MAX_TIME, Field, Ints, check_once, coded, made_unique, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

TASK_HEADER = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOB_HEADER = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
JOBS_FILE = "pai_job_table.csv"
STATES = {"Running", "Terminated", "Failed", "Waiting", "Interrupted"}

# Planned resources are hundredths with a fraction. Like seconds, they are read in millionths.
_HUNDREDTHS = 10**6
_GIB = 1024

FIELDS = (
    Field("job_name", "text", "the job that the task belongs to"),
    Field("task_name", "text", "role, such as ps or worker", default=""),
    Field("inst_num", "whole", "instances: the pods of a gang", high=10**6, default=0),
    Field("status", "text", "how it ended; not used", default=""),
    Field("start_time", "seconds", "launch, seconds", low=-1, high=MAX_TIME, default=-1),
    Field("end_time", "seconds", "end, seconds", low=-1, high=MAX_TIME, default=-1),
    Field("plan_cpu", "seconds", "hundredths of a core for each instance", high=MAX_TIME, default=0),
    Field("plan_mem", "seconds", "GiB for each instance", high=MAX_TIME, default=0),
    Field("plan_gpu", "seconds", "hundredths of a GPU for each instance", high=10**6 * _HUNDREDTHS, default=0),
)
_JOB_FIELDS = (
    Field("job_name", "text", ""),
    Field("user", "text", "", default=""),
    Field("start_time", "seconds", "", low=-1, high=MAX_TIME, default=-1),
)


def looks_so(row: str) -> bool:
    """Return whether a line without column names may be a row of the task table."""
    cells = row.split(",")
    return len(cells) == len(TASK_HEADER) and cells[3] in STATES


def parse(path: Path) -> Trace:
    """Read each task with GPUs that ran as a job: a gang of its instances.

    The user and the time of submission are in `pai_job_table.csv` in the same folder; without that file a task counts
    as submitted when it was launched. An instance with 50 % of a GPU requests 500 thousandths, one with 150 % requests
    750 thousandths of each of two GPUs. Raises InputError if a file is not such a table.
    """
    table = read_table(path, FIELDS, header=_header(path, TASK_HEADER))
    numbers, names = table.numbers, table.texts["job_name"]
    tasks = table.texts["task_name"]
    submitted, user_of = _jobs(path.with_name(JOBS_FILE))
    launch, end, pods = numbers["start_time"], numbers["end_time"], numbers["inst_num"]
    runtime = np.where((end >= 0) & (launch >= 0) & (pods > 0), end - launch, 0)
    percent = -(-numbers["plan_gpu"] // _HUNDREDTHS)
    gpus = -(-percent // 100)
    keep = np.flatnonzero((runtime > 0) & (gpus > 0))
    rows = keep.tolist()
    submit: Ints = np.array([min(submitted.get(names[row], launch[row]), launch[row]) for row in rows], dtype=np.int64)
    user, users = coded([user_of.get(names[row], "") for row in rows])
    title, titles = coded([tasks[row] for row in rows])
    notes = left_out(never_ran=runtime <= 0, without_gpu=(runtime > 0) & (gpus == 0))
    if not submitted:
        notes = (*notes, f"no {JOBS_FILE} next to it: tasks count as submitted at their launch, without a user")
    jobs = make_workload(
        path.name,
        submit,
        runtime[keep],
        gpus[keep],
        ids=made_unique([f"{names[row]}/{tasks[row]}" for row in rows], "#"),
        pods=pods[keep],
        milli=np.maximum(percent[keep] * (GPU // 100) // gpus[keep], 1),
        cpu=numbers["plan_cpu"][keep] * 10 // _HUNDREDTHS,
        memory=numbers["plan_mem"][keep] * _GIB // _HUNDREDTHS,
        user=user,
        users=users or ("",),
        title=title,
        titles=titles or ("",),
        origin=0,
        notes=notes,
    )
    return Trace(jobs=jobs, slices=np.zeros(len(rows), dtype=np.int64), names=("default",))


def _jobs(path: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return submission and user by job; empty if the file does not exist.

    Raises InputError if two rows of one job differ. Repeated equal rows have no effect.
    """
    if not path.is_file():
        return {}, {}
    table = read_table(path, _JOB_FIELDS, header=_header(path, JOB_HEADER))
    names, starts = table.texts["job_name"], table.numbers["start_time"].tolist()
    if len(set(names)) < len(names):
        said: dict[tuple[str, int, str], int] = {}
        for row, own in enumerate(zip(names, starts, table.texts["user"], strict=True)):
            said.setdefault(own, row)
        check_once(path, "job_name", [name for name, _, _ in said], "each job once", table.place, list(said.values()))
    submitted = {name: start for name, start in zip(names, starts, strict=True) if start >= 0}
    return submitted, dict(zip(names, table.texts["user"], strict=True))


def _header(path: Path, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of the columns if the file has no header row; otherwise None."""
    lines = head(path).decode("utf-8-sig", "replace").splitlines()
    return None if names[0] in next(csv.reader(lines[:1]), []) else names
