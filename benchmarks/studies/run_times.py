"""How often real jobs keep to the run times that Kant predicts: `python -m benchmarks.studies.run_times`.

Walks each workload in order of submission. A job is asked about when it is submitted, from those that had ended by
then (submission, wait where the trace knows it, and run time), and once more after an hour and a day of running.
The constants of `kant.cluster.history` were chosen on the first half of Philly; the second half and the other
workloads show how they do elsewhere. Takes about 15 seconds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import DATA
from kant.cluster.history import STATED, RunTimes
from kant.model.units import DAY, GPU, HOUR, SECOND, WEEK, size_class
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.swf import read_log
from kant.workload.workload import Workload

Ints = NDArray[np.int64]
AGES = (HOUR, DAY)
FEW = 100


@dataclass(frozen=True, slots=True)
class Walk:
    """Columns by job: what it was, what was predicted for it, and (age, permille, left, predicted) once it ran."""

    submit: Ints
    runtime: Ints
    gpus: Ints
    predicted: Ints  # one column for each of STATED
    aged: Ints
    micros: float  # CPU time of all that RunTimes did, by job


def workloads() -> Iterator[tuple[str, list[Ints]]]:
    """Name and columns (submit, wait, run time, GPUs, queue, user); a user of -1 is unknown."""
    if (DATA / "philly_jobs.csv.gz").exists():
        yield "philly", _columns(read_workload(DATA / "philly_jobs.csv.gz"))
    path = DATA / "RICC-2010-2.swf.gz"
    if path.exists():
        log = read_log(path, ("submit", "wait", "run", "allocated", "queue", "user", "status")).columns
        order = np.argsort(log["submit"], kind="stable")
        ended = order[log["status"][order] == 1]  # 5: cancelled
        table = {name: column[ended].astype(np.int64) for name, column in log.items()}
        times = [table[name] * SECOND for name in ("submit", "wait", "run")]
        yield "ricc", [*times, table["allocated"], table["queue"], table["user"]]
    yield "helios-venus, generated", _columns(generate("helios-venus", jobs=20_000, days=29, seed=1))


def _columns(jobs: Workload) -> list[Ints]:
    users = np.array([code if name else -1 for code, name in enumerate(jobs.users)])[jobs.user]
    return [jobs.submit, np.zeros_like(jobs.submit), jobs.runtime, jobs.total_gpus, jobs.queue, users]


def walk(columns: list[Ints]) -> Walk:
    """One pass over the jobs in order of time; at one instant jobs end before others are asked about."""
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    times = RunTimes()
    kinds: list[int] = []
    predicted: list[tuple[int, ...]] = []
    coming: list[tuple[int, int, int]] = []  # (when, job, age it reaches; -1: its end)
    aged: list[tuple[int, int, int, int]] = []
    spent = 0

    def happens(job: int, age: int) -> None:
        nonlocal spent
        left = rows[job][2] - age
        began = time.process_time_ns()
        if age < 0:
            times.finished(kinds[job], rows[job][2], predicted[job])
        spent += time.process_time_ns() - began
        if age > 0:
            aged.extend((age, q, left, times.remaining(kinds[job], age, q)) for q in STATED)

    for job, (submit, wait, runtime, gpus, queue, user) in enumerate(rows):
        while coming and coming[0][0] <= submit:
            happens(*heapq.heappop(coming)[1:])
        began = time.process_time_ns()
        kinds.append(times.kind(queue, user, "", gpus * GPU))
        predicted.append(times.promises(kinds[job]))
        spent += time.process_time_ns() - began
        heapq.heappush(coming, (submit + wait + runtime, job, -1))
        for age in AGES:
            if runtime > age:
                heapq.heappush(coming, (submit + wait + age, job, age))
    submit, _, runtime, gpus, _, _ = columns
    table = np.array(aged, dtype=np.int64).reshape(-1, 4)
    return Walk(submit, runtime, gpus, np.array(predicted), table, spent / 1000 / len(rows))


def rows_of(seen: Walk) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """What each row of the table is about, as a mask over the jobs."""
    late = np.arange(len(seen.submit)) >= len(seen.submit) // 2
    yield "all jobs", np.ones_like(late)
    yield "first half", ~late
    yield "second half", late
    classes = np.array([size_class(int(gpus)) for gpus in seen.gpus])
    for name in dict.fromkeys(classes[np.argsort(seen.gpus, kind="stable")].tolist()):
        yield f"second half, {name} GPUs", late & (classes == name)
    weeks = seen.submit // WEEK
    for week in np.unique(weeks).tolist():
        yield f"week {week + 1}", weeks == week


def table(name: str, seen: Walk) -> Iterator[str]:
    yield f"\n## {name}: {len(seen.submit)} jobs, {seen.micros:.1f} µs a job for two predictions and one end\n"
    yield "| jobs | number | predicted % | P50 kept % | P90 kept % | P50 / actual | P90 / actual |"
    yield "|---|---|---|---|---|---|---|"
    for label, mask in rows_of(seen):
        known = mask & (seen.predicted >= 0).all(axis=1)
        if known.sum() < FEW:
            continue
        actual, predicted = seen.runtime[known, None], seen.predicted[known]
        kept = 100 * (actual <= predicted).mean(axis=0)
        ratio = np.median(predicted / np.maximum(actual, SECOND), axis=0)
        share = 100 * known.sum() / mask.sum()
        percents = " | ".join(f"{percent:.1f}" for percent in (share, *kept))
        yield f"| {label} | {mask.sum()} | {percents} | {ratio[0]:.2f} | {ratio[1]:.2f} |"
    yield "\n| still running after | number | P50 kept % | P90 kept % | P50 / left | P90 / left |"
    yield "|---|---|---|---|---|---|"
    for age in AGES:
        cells = []
        for permille in STATED:
            _, _, left, predicted = seen.aged[(seen.aged[:, 0] == age) & (seen.aged[:, 1] == permille)].T
            if len(left) < FEW:
                break
            cells.append((100 * np.mean(left <= predicted), np.median(predicted / left), len(left)))
        if cells:
            (kept50, ratio50, number), (kept90, ratio90, _) = cells
            yield f"| {age // HOUR} h | {number} | {kept50:.1f} | {kept90:.1f} | {ratio50:.2f} | {ratio90:.2f} |"


def main() -> None:
    print("# Run times that were predicted, and that were")
    for name, columns in workloads():
        for line in table(name, walk(columns)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
