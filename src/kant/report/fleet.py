"""Who holds which GPU when: the intervals behind the map, cut down to a size budget where a run is big."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec
from kant.report.pack import pack, pack_names, size
from kant.report.series import BUCKETS, last_moment
from kant.report.waits import job_classes

BUDGET = 6_000_000
"""Bytes of compressed intervals, all runs together."""

LEAST = 2
"""No interval compresses to fewer bytes: a larger count need not be tried."""

FIRST_GUESS = 10.0
"""Bytes of an interval, before one has been packed."""

GROUP = 32
"""Nodes drawn together where the cluster does not name its leaves."""

RESOLUTION = 1 << 24
"""Distinct moments at most: the unit of time is the smallest power of ten microseconds that keeps to it."""

LOW = (1 << 31) - 1

Ints = NDArray[np.int64]


def pack_cluster(cluster: ClusterSpec) -> dict[str, Any]:
    """The nodes by index, with the group (leaf) in which each is drawn, and the spine of each group."""
    spines: dict[tuple[str, str], int] = {}
    groups: dict[tuple[int, str], int] = {}
    group, unnamed = [], 0
    for node in cluster.nodes:
        label = node.leaf
        if not label:
            label = f"nodes {unnamed // GROUP * GROUP} to {unnamed // GROUP * GROUP + GROUP - 1}"
            unnamed += 1
        spine = spines.setdefault((node.superspine, node.spine), len(spines))
        group.append(groups.setdefault((spine, label), len(groups)))
    models = sorted({node.model for node in cluster.nodes})
    return {
        "names": pack_names([node.name for node in cluster.nodes]),
        "gpus": pack([node.gpus for node in cluster.nodes]),
        "group": pack(group, delta=True),
        "groups": pack_names([label for _, label in groups]),
        "spine": pack([spine for spine, _ in groups], delta=True),
        "spines": pack_names([" / ".join(filter(None, path)) for path in spines]),
        "model": pack([models.index(node.model) for node in cluster.nodes]),
        "models": models,
    }


def pack_fleet(
    runs: Sequence[RunResult], queues: Sequence[str], begin: int, end: int, budget: int = BUDGET
) -> dict[str, Any]:
    """The intervals of every run, in units of time since `begin`, within `budget` bytes.

    Over the budget, the map is sampled: `frames` moments equally far apart, and of the intervals only those
    in force at one of them.
    """
    unit = 1
    while (end - begin) // unit >= RESOLUTION:
        unit *= 10
    length = (end - begin) // unit
    rows = [clean_rows(run, begin, unit) for run in runs]
    total = kept = sum(map(len, rows))
    frames, packed = 0, None
    if total * LEAST <= budget:
        packed = _pack_runs(runs, rows, queues)
    if packed is None or size(packed) > budget:
        frames, kept, packed = _sample(runs, rows, queues, length, budget)
    return {"unit_us": unit, "length": length, "frames": frames, "total": total, "kept": kept, "runs": packed}


def _sample(
    runs: Sequence[RunResult], rows: Sequence[Ints], queues: Sequence[str], length: int, budget: int
) -> tuple[int, int, list[dict[str, Any]]]:
    """The number of frames, how many intervals they keep, and those: as many frames as four guesses find.

    A guess is the bytes that an interval takes; each is corrected by what the one before came to.
    """
    each, best = FIRST_GUESS, None
    for _ in range(4):
        frames = _most_frames(rows, length, int(budget / each))
        part = [run[in_force(run, length, frames)] for run in rows]
        kept, packed = sum(map(len, part)), _pack_runs(runs, part, queues)
        taken = size(packed)
        if best is None or taken <= budget:
            best = frames, kept, packed
        if frames == 1 or 0.9 * budget < taken <= budget or (frames == BUCKETS and taken <= budget):
            break
        each = 1.03 * taken / max(kept, 1)
    assert best is not None
    return best


def _most_frames(rows: Sequence[Ints], length: int, most: int) -> int:
    """The largest number of frames (by bisection) that keeps at most `most` intervals; at least one."""
    low, high = 1, BUCKETS
    while low < high:
        middle = (low + high + 1) // 2
        if sum(int(in_force(run, length, middle).sum()) for run in rows) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def clean_rows(run: RunResult, begin: int, unit: int) -> Ints:
    """The intervals with times in units since `begin`, without the empty ones, in order of start."""
    rows = np.array(run.intervals, dtype=np.int64).reshape(-1, 6)
    rows[rows[:, 5] < 0, 5] = last_moment(run)
    rows[:, 4:] = (rows[:, 4:] - begin) // unit
    rows = rows[rows[:, 4] < rows[:, 5]]
    return rows[np.lexsort((rows[:, 5], rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0], rows[:, 4]))]


def frame_time(frame: Ints, length: int, frames: int) -> Ints:
    """The moment of each frame: the middle of its equal share of `length`. `player.js` computes the same."""
    return (2 * frame + 1) * length // (2 * frames)


def in_force(rows: Ints, length: int, frames: int) -> NDArray[np.bool_]:
    """Which intervals are in force at one of the frames."""
    moments = frame_time(np.arange(frames, dtype=np.int64), length, frames)
    return np.searchsorted(moments, rows[:, 4]) < np.searchsorted(moments, rows[:, 5])


def _pack_runs(runs: Sequence[RunResult], rows: Sequence[Ints], queues: Sequence[str]) -> list[dict[str, Any]]:
    return [_pack_run(run, part, queues) for run, part in zip(runs, rows, strict=True)]


def _pack_run(run: RunResult, rows: Ints, queues: Sequence[str]) -> dict[str, Any]:
    used, job = np.unique(rows[:, 0], return_inverse=True)
    code = np.array([queues.index(name) for name in run.queues], dtype=np.int64)
    fewest = run.jobs.fewest
    return {
        "fewest": None if fewest is None else [pack(column) for column in fewest[used].T],
        "job": pack(job, delta=True),
        "node": pack(rows[:, 1], delta=True),
        "mask_low": pack(rows[:, 2] & LOW),
        "mask_high": pack(rows[:, 2] >> 31),
        "milli": pack(rows[:, 3]),
        "start": pack(rows[:, 4], delta=True),
        "length": pack(rows[:, 5] - rows[:, 4]),
        "ids": pack_names([run.jobs.id[i] for i in used.tolist()]),
        "gpus": pack(run.jobs.gpus[used]),
        "size": pack(job_classes(run.jobs)[used]),
        "queue": pack(code[run.jobs.queue[used]] if len(used) else []),
    }
