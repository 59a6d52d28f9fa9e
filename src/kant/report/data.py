"""The data of a report's page as one object: `report_data` builds it, `as_json` makes it safe in a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import JobTable, RunResult
from kant.model.status import JobStatus
from kant.model.units import GPU, SECOND, SIZE_CLASSES
from kant.report.fleet import pack_cluster, pack_fleet
from kant.report.pack import pack
from kant.report.series import bucket_edges, last_moment, pack_series, span
from kant.report.summary import dig, plain, trimmed

PER_DECADE = 20
EDGES = SECOND * 10 ** (np.arange(8 * PER_DECADE + 1) / PER_DECADE)
"""Upper edges of the buckets: one second to 10**8 seconds. The first bucket also contains all shorter waits."""

CLASSES = tuple(name for name, _ in SIZE_CLASSES)

Ints = NDArray[np.int64]


def job_classes(jobs: JobTable) -> Ints:
    """Return each job's index into CLASSES; a share of a GPU counts as one GPU."""
    whole = -(-jobs.gpus // GPU)
    return np.searchsorted([largest for _, largest in SIZE_CLASSES[:-1]], whole).astype(np.int64)


def class_waits(run: RunResult) -> list[dict[str, Any]]:
    """Return for each size class the jobs that started, by bucket of waiting time, and the row of the table.

    Rejected and cancelled jobs do not count. `never` counts the others that had no start before the end. The row is the
    summary's if it has one. Otherwise it is computed in the same way: unfinished jobs count with their waits so far.
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
    """Return the mean and the quantiles (the nearest rank from above), in seconds, of `wait` (µs)."""
    row: dict[str, Any] = {"count": len(wait), "censored": censored}
    if len(wait):
        ordered = np.sort(wait) / SECOND
        row["mean"] = float(ordered.mean())
        for key, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
            row[key] = float(ordered[-(-share * len(wait) // 100) - 1])
    return row


def report_data(runs: Sequence[RunResult], title: str = "", zero: int | None = None) -> dict[str, Any]:
    """Return the numbers and the columns of every run, times in microseconds or in the map's unit.

    `zero` is the run's time zero in microseconds since the Unix epoch, if known.
    """
    begin, end = span(runs)
    edges = bucket_edges(begin, end)
    clusters = list(dict.fromkeys(run.cluster for run in runs))
    queues = busiest_queues(runs)
    packed = pack_fleet(runs, queues, begin, end)
    pieces = packed.pop("runs")
    return {
        "title": title,
        "begin_us": begin,
        "end_us": end,
        "zero_us": zero,
        "buckets": max(0, len(edges) - 1),
        "classes": list(CLASSES),
        "edges": [float(f"{edge / SECOND:.6g}") for edge in EDGES],
        "queues": queues,
        "clusters": [pack_cluster(cluster) for cluster in clusters],
        "map": packed,
        "runs": [
            {
                "label": label,
                "profile": run.profile,
                "workload": run.workload,
                "cluster": clusters.index(run.cluster),
                "end_us": last_moment(run),
                "interrupted": run.interrupted,
                "summary": summary,
                "series": pack_series(run, edges),
                "waits": [{**row, "row": plain(row["row"])} for row in class_waits(run)],
                **piece,
            }
            for label, run, summary, piece in zip(labels(runs), runs, trimmed(runs), pieces, strict=True)
        ],
    }


def labels(runs: Sequence[RunResult]) -> list[str]:
    """Return the name of each run's profile, numbered if several runs have the same."""
    names = [run.profile for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def busiest_queues(runs: Sequence[RunResult]) -> list[str]:
    """Return all queues of all runs. Those with the most GPU-time in the map come first; ties are ordered by name."""
    time: dict[str, int] = {}
    for run in runs:
        rows, jobs = run.intervals, run.jobs
        held = np.zeros(len(run.queues), dtype=np.float64)
        if len(rows):
            masks, which = np.unique(rows[:, 2], return_inverse=True)
            devices = np.array([mask.bit_count() for mask in masks.tolist()], dtype=np.float64)[which]
            spent = (rows[:, 5] - rows[:, 4]) * devices * rows[:, 3]
            np.add.at(held, jobs.queue[rows[:, 0]], spent)
        for name, amount in zip(run.queues, held, strict=True):
            time[name] = time.get(name, 0) + int(amount)
    return sorted(time, key=lambda name: (-time[name], name))


def as_json(data: object) -> str:
    """Return `data` as JSON that is safe inside a script element, whatever names it contains."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
