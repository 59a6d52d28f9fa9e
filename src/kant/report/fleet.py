"""Which job holds which GPU when, and when each job arrived, started and ended. Large runs are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec
from kant.report.pack import pack, pack_names, size
from kant.report.series import BUCKETS, last_moment

BUDGET = 6_000_000
"""The maximum number of bytes of compressed intervals and jobs, over all runs."""

LEAST = 2
"""The minimum compressed bytes of an interval: if all intervals exceed the budget at this size, they are sampled."""

FIRST_GUESS = 10.0
"""The assumed bytes of an interval before one has been packed."""

RESOLUTION = 1 << 24
"""The maximum number of distinct times: the unit of time is the smallest power of ten microseconds within it."""

LOW = (1 << 31) - 1

Ints = NDArray[np.int64]

NEVER = -1
"""Stands for a job without a start or an end."""


def pack_cluster(cluster: ClusterSpec) -> dict[str, Any]:
    """Return the nodes by index, with the names of their domains, by which the page groups them."""
    nodes = cluster.nodes
    models = sorted({node.model for node in nodes})
    return {
        "name": cluster.name,
        "names": pack_names([node.name for node in nodes]),
        "gpus": pack([node.gpus for node in nodes]),
        "model": pack([models.index(node.model) for node in nodes]),
        "models": models,
        "leaf": pack_names([node.leaf for node in nodes]),
        "spine": pack_names([node.spine for node in nodes]),
        "superspine": pack_names([node.superspine for node in nodes]),
    }


def pack_fleet(
    runs: Sequence[RunResult], queues: Sequence[str], begin: int, end: int, budget: int = BUDGET
) -> dict[str, Any]:
    """Return the jobs and the intervals of every run, in units of time since `begin`, within `budget` bytes.

    Over the budget, the map is sampled at `frames` equally spaced times: only the intervals in force at one of them are
    kept, and only the jobs that have such an interval.
    """
    unit = 1
    while (end - begin) // unit >= RESOLUTION:
        unit *= 10
    length = (end - begin) // unit
    rows = [clean_rows(run, begin, unit) for run in runs]
    total = kept = sum(map(len, rows))
    frames, packed = 0, None
    if total * LEAST <= budget:
        packed = _pack_runs(runs, rows, queues, begin, unit, whole=True)
    if packed is None or size(packed) > budget:
        frames, kept, packed = _sample(runs, rows, queues, begin, unit, length, budget)
    return {"unit_us": unit, "length": length, "frames": frames, "total": total, "kept": kept, "runs": packed}


def _sample(
    runs: Sequence[RunResult],
    rows: Sequence[Ints],
    queues: Sequence[str],
    begin: int,
    unit: int,
    length: int,
    budget: int,
) -> tuple[int, int, list[dict[str, Any]]]:
    """Return the number of frames, the number of intervals that they keep, and these intervals, packed: the result of
    at most four guesses.

    A guess is a number of bytes for each interval; the result of one guess corrects the next.
    """
    each, best = FIRST_GUESS, None
    for _ in range(4):
        frames = _most_frames(rows, length, int(budget / each))
        part = [run[in_force(run, length, frames)] for run in rows]
        kept, packed = sum(map(len, part)), _pack_runs(runs, part, queues, begin, unit, whole=False)
        taken = size(packed)
        if best is None or taken <= budget:
            best = frames, kept, packed
        if frames == 1 or 0.9 * budget < taken <= budget or (frames == BUCKETS and taken <= budget):
            break
        each = 1.03 * taken / max(kept, 1)
    assert best is not None
    return best


def _most_frames(rows: Sequence[Ints], length: int, most: int) -> int:
    """Return the largest number of frames (found by bisection) that keeps at most `most` intervals; at least one."""
    low, high = 1, BUCKETS
    while low < high:
        middle = (low + high + 1) // 2
        if sum(int(in_force(run, length, middle).sum()) for run in rows) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def clean_rows(run: RunResult, begin: int, unit: int) -> Ints:
    """Return the intervals in order of start, without empty ones, with times in units since `begin`."""
    rows = np.array(run.intervals, dtype=np.int64).reshape(-1, 6)
    rows[rows[:, 5] < 0, 5] = last_moment(run)
    rows[:, 4:] = (rows[:, 4:] - begin) // unit
    rows = rows[rows[:, 4] < rows[:, 5]]
    return rows[np.lexsort((rows[:, 5], rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0], rows[:, 4]))]


def frame_time(frame: Ints, length: int, frames: int) -> Ints:
    """Return the time of each frame: the middle of its equal share of `length`. `embedded.ts` computes the same."""
    return (2 * frame + 1) * length // (2 * frames)


def in_force(rows: Ints, length: int, frames: int) -> NDArray[np.bool_]:
    """Return for each interval whether it is in force at one of the frames."""
    moments = frame_time(np.arange(frames, dtype=np.int64), length, frames)
    return np.searchsorted(moments, rows[:, 4]) < np.searchsorted(moments, rows[:, 5])


def _pack_runs(
    runs: Sequence[RunResult], rows: Sequence[Ints], queues: Sequence[str], begin: int, unit: int, *, whole: bool
) -> list[dict[str, Any]]:
    return [_pack_run(run, part, queues, begin, unit, whole) for run, part in zip(runs, rows, strict=True)]


def _pack_run(run: RunResult, rows: Ints, queues: Sequence[str], begin: int, unit: int, whole: bool) -> dict[str, Any]:
    kept = np.arange(len(run.jobs.id)) if whole else np.unique(rows[:, 0])
    return {
        "nodes": {
            "since": pack((run.service[:, 0] - begin) // unit, delta=True),
            "node": pack(run.service[:, 1]),
            "status": pack(run.service[:, 2]),
            "lost_low": pack(run.service[:, 3] & LOW),
            "lost_high": pack(run.service[:, 3] >> 31),
        },
        "jobs": {**pack_jobs(run, kept, queues, begin, unit), "whole": whole},
        "fleet": {
            "job": pack(np.searchsorted(kept, rows[:, 0]), delta=True),
            "node": pack(rows[:, 1], delta=True),
            "mask_low": pack(rows[:, 2] & LOW),
            "mask_high": pack(rows[:, 2] >> 31),
            "milli": pack(rows[:, 3]),
            "start": pack(rows[:, 4], delta=True),
            "length": pack(rows[:, 5] - rows[:, 4]),
        },
    }


def pack_jobs(run: RunResult, kept: Ints, queues: Sequence[str], begin: int, unit: int) -> dict[str, Any]:
    """The rows `kept` of the job table, times in `unit`s: `submit` since `begin`, `start` and `end` since `submit`
    (-1: never), `wait` and its causes as they are.
    """
    jobs = run.jobs
    submit = jobs.submit[kept]
    code = np.array([queues.index(name) for name in run.queues], dtype=np.int64)

    def since_submit(moment: Ints) -> Ints:
        later: Ints = np.where(moment >= 0, np.maximum(0, moment // unit - submit // unit), NEVER)
        return later

    return {
        "ids": pack_names([jobs.id[row] for row in kept.tolist()]),
        "queue": pack(code[jobs.queue[kept]] if len(kept) else []),
        "milli": pack(jobs.gpus[kept]),
        "submit": pack((submit - begin) // unit, delta=True),
        "start": pack(since_submit(jobs.first_start[kept])),
        "end": pack(since_submit(jobs.end[kept])),
        "wait": pack(jobs.wait[kept] // unit),
        "status": pack(jobs.status[kept]),
        "preemptions": pack(jobs.preemptions[kept]),
        "fewest": None if jobs.fewest is None else [pack(column) for column in jobs.fewest[kept].reshape(-1, 2).T],
        "causes": {cause: pack(column[kept] // unit) for cause, column in (run.wait_by_cause or {}).items()},
    }
