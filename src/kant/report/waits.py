"""The waiting times of jobs, by size class: counts over log-spaced buckets, and a row of quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import JobTable, RunResult
from kant.model.status import JobStatus
from kant.model.units import GPU, SECOND, SIZE_CLASSES
from kant.report.pack import pack
from kant.report.summary import dig

PER_DECADE = 20
EDGES = SECOND * 10 ** (np.arange(8 * PER_DECADE + 1) / PER_DECADE)
"""Upper edges of the buckets: one second to 10**8 seconds; the first also holds every shorter wait."""

CLASSES = tuple(name for name, _ in SIZE_CLASSES)

Ints = NDArray[np.int64]


def job_classes(jobs: JobTable) -> Ints:
    """The index into CLASSES of each job; a share of a GPU counts as one."""
    whole = -(-jobs.gpus // GPU)
    return np.searchsorted([largest for _, largest in SIZE_CLASSES[:-1]], whole).astype(np.int64)


def class_waits(run: RunResult) -> list[dict[str, Any]]:
    """For each size class: the jobs that started, by bucket of waiting time, and the row of the table.

    Rejected and cancelled jobs do not count. `never` counts the others that had no start before the end. The row is the
    summary's if it has one, else computed in the same way: unfinished jobs count with their waits so far.
    """
    jobs, classes = run.jobs, job_classes(run.jobs)
    admitted = (jobs.status != JobStatus.REJECTED) & (jobs.status != JobStatus.CANCELLED)
    found: list[dict[str, Any]] = []
    for index, name in enumerate(CLASSES):
        own = admitted & (classes == index)
        begun = own & (jobs.first_start >= 0)
        bucket = np.minimum(np.searchsorted(EDGES, jobs.wait[begun]), len(EDGES) - 1)
        row = dig(run.summary, "wait_by_size", name)
        if not isinstance(row, dict):
            row = wait_row(jobs.wait[own], int((own & (jobs.status != JobStatus.FINISHED)).sum()))
        found.append(
            {
                "started": int(begun.sum()),
                "never": int((own & ~begun).sum()),
                "counts": pack(np.bincount(bucket, minlength=len(EDGES))),
                "row": row,
            }
        )
    return found


def wait_row(wait: Ints, censored: int) -> dict[str, Any]:
    """Mean and quantiles (the nearest rank from above) of `wait` in seconds."""
    row: dict[str, Any] = {"count": len(wait), "censored": censored}
    if len(wait):
        ordered = np.sort(wait) / SECOND
        row["mean"] = float(ordered.mean())
        for key, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
            row[key] = float(ordered[-(-share * len(wait) // 100) - 1])
    return row
