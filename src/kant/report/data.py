"""The data of a report's page as one object: `report_data` builds it, `as_json` makes it safe in a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.metrics.result import RunResult
from kant.model.units import SECOND
from kant.report.fleet import pack_cluster, pack_fleet
from kant.report.series import bucket_edges, last_moment, pack_series, span
from kant.report.summary import plain, trimmed
from kant.report.waits import CLASSES, EDGES, class_waits


def report_data(runs: Sequence[RunResult], title: str = "", zero: int | None = None) -> dict[str, Any]:
    """The numbers and the columns of every run, times in microseconds or in the map's unit.

    `zero` is the time of the Unix epoch, in microseconds, at which the runs' clock was 0, if known.
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
    """The profile of each run, numbered if two runs share one."""
    names = [run.profile for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def busiest_queues(runs: Sequence[RunResult]) -> list[str]:
    """Every queue of every run, the one with most GPU-time in the map first, ties by name."""
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
    """`data` as JSON that is safe inside a script element, whatever names it contains."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
