"""The summary of a run: the one object that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.metrics import recorder as rec
from kant.metrics.fairness import nominal_gpus, over_queues, rho
from kant.metrics.jtted import jtted
from kant.metrics.recorder import Recorder
from kant.metrics.result import JobTable
from kant.metrics.statistics import over_time, spread
from kant.model.status import JobStatus
from kant.model.units import GPU, HOUR, SECOND, SIZE_CLASSES
from kant.placement.cost.slowdown import SPANS_WIDTH, T_LEAVES, T_NODES, SpanRows

LEFT_BEFORE = -1
"""Replaces the status of a job that left before the run began, and so does not count."""


def job_table(state: ClusterState, end: int, recorder: Recorder | None = None) -> JobTable:
    """Return the jobs that arrived, as of `end`; with `recorder` also the fewest nodes and leaves of each.

    Columns that the state has are not copied (`JobTable.apart` copies them).
    """
    jobs = state.jobs[: len(state.ids)]
    waits = jobs[:, c.J_WAITED]
    if state.pending:
        waits = waits + np.where(jobs[:, c.J_STATUS] == JobStatus.PENDING, end - jobs[:, c.J_SINCE], 0)
    return JobTable(
        id=state.ids,
        queue=jobs[:, c.J_QUEUE],
        gpus=_asked(state),
        submit=jobs[:, c.J_SUBMIT],
        first_start=jobs[:, c.J_FIRST_START],
        end=jobs[:, c.J_END],
        wait=waits,
        preemptions=jobs[:, c.J_PREEMPTIONS],
        status=jobs[:, c.J_STATUS],
        fewest=_fewest(recorder) if recorder is not None else None,
    )


def _fewest(recorder: Recorder) -> SpanRows:
    shapes = recorder.shapes()
    known = np.unique(shapes)
    best = np.array([recorder.model.best(shape) for shape in known.tolist()], dtype=np.int32).reshape(-1, SPANS_WIDTH)
    fewest: SpanRows = best[:, [T_NODES, T_LEAVES]][np.searchsorted(known, shapes)]
    return fewest


def _asked(state: ClusterState) -> np.ndarray:
    """Return the milli-GPUs that each job requested; for an elastic gang its ceiling."""
    jobs, shapes = state.jobs[: len(state.ids)], state.shapes.shapes
    if {shape.ceiling for shape in shapes} <= {()}:
        return jobs[:, c.J_MILLI]
    return np.array([shape.most_milli for shape in shapes], dtype=np.int64)[jobs[:, c.J_SHAPE]]


def summarise(
    state: ClusterState, recorder: Recorder, table: JobTable, end: int, quantile: str, gone: Sequence[int] | Table = ()
) -> dict[str, Any]:
    """Return counts, times and the five metrics (docs/metrics.md) of everything that happened up to `end`.

    Rejected jobs count only in `jobs` and `rejected`. Times of jobs that still wait count up to `end`, and their number
    is in `censored`. The jobs whose rows are `gone` had left before the run began, and do not count.
    """
    jobs = state.jobs[: len(state.ids)]
    status = table.status.copy()
    status[np.asarray(gone, dtype=np.int64)] = LEFT_BEFORE
    finished = status == JobStatus.FINISHED
    admitted = (status != JobStatus.REJECTED) & (status != JobStatus.CANCELLED) & (status != LEFT_BEFORE)
    sizes = size_masks(table.gpus)
    waited = {
        name: spread(table.wait[mask & admitted], quantile)
        | {"count": int((mask & admitted).sum()), "censored": int((mask & admitted & ~finished).sum())}
        for name, mask in sizes.items()
    }
    started = admitted & (table.first_start >= 0)
    by_queue = _by_queue(state, recorder, table, admitted, end, quantile)
    return {
        "jobs": len(jobs) - len(gone),
        "completed": int(finished.sum()),
        "censored": int((admitted & ~finished).sum()),
        "rejected": int((status == JobStatus.REJECTED).sum()),
        "cancelled": int((status == JobStatus.CANCELLED).sum()),
        "makespan_s": int(table.end[finished].max(initial=0)) / SECOND,
        "end_s": end / SECOND,
        "jct_s": spread((table.end - table.submit)[finished], quantile),
        "wait_s": spread(table.wait[admitted], quantile),
        "first_wait_s": spread((table.first_start - table.submit)[started], quantile),
        "wait_by_size": waited,
        **_ratios(state, recorder),
        "jtted": _jtted(state, recorder, table, started, sizes),
        "preemptions": int(jobs[:, c.J_PREEMPTIONS].sum()),
        "evictions": int(jobs[:, c.J_PREEMPTIONS].sum()) + state.health.evictions,
        "node_faults": state.health.faults,
        "replaced_in_place": recorder.replaced,
        "failures": int(jobs[:, c.J_FAILURES].sum()),
        "lost_gpu_s": sum(work / SECOND * int(table.gpus[row]) / GPU for row, work in recorder.lost_work.items()),
        "tardiness_s": _tardiness(jobs[:, c.J_DUE], table, admitted, end, quantile),
        "fairness": over_queues(by_queue),
        "by_queue": by_queue,
    }


def _tardiness(due: np.ndarray, table: JobTable, admitted: np.ndarray, end: int, quantile: str) -> dict[str, Any]:
    """Return how much jobs with a due date ended after it; for jobs that have not ended, as of `end`."""
    own = admitted & (due >= 0)
    over = np.maximum(np.where(table.status == JobStatus.FINISHED, table.end, end) - due, 0)[own]
    return spread(over, quantile) | {"count": int(own.sum()), "late": int((over > 0).sum())}


def size_masks(milli: np.ndarray) -> dict[str, np.ndarray]:
    """Return a mask over the jobs for each size class; a share of a GPU counts as one."""
    gpus, masks, below = -(-milli // GPU), {}, -1
    for name, largest in SIZE_CLASSES:
        masks[name] = (gpus > below) & (gpus <= largest)
        below = largest
    return masks


def _ratios(state: ClusterState, recorder: Recorder) -> dict[str, Any]:
    """Return GAR, SOR and GFR of the cluster and of each pool."""
    time = recorder.column(rec.S_TIME)
    last, spans, serving = int(time[-1]), np.diff(time), recorder.column(rec.S_CAPACITY)[:-1] > 0
    del time  # a run has a million samples
    spans = spans[serving]
    gar, gfr = [
        over_time(recorder.column(part)[:-1][serving] / recorder.column(whole)[:-1][serving], spans)
        for part, whole in ((rec.S_ALLOCATED, rec.S_CAPACITY), (rec.S_FRAGMENTED, rec.S_NODES))
    ]
    allocated, capacity = recorder.integral(rec.I_ALLOCATED), recorder.integral(rec.I_CAPACITY)
    fragmented, nodes = recorder.integral(rec.I_FRAGMENTED), recorder.integral(rec.I_NODES)
    everything = GPU * float(recorder.gpu_time_there(last))
    return {
        "gar": gar,
        "sor": _share(sum(allocated), sum(capacity)),
        "sor_all_nodes": _share(sum(allocated) * SECOND, everything),
        "gfr": gfr,
        "by_pool": {
            state.shapes.pool_name(p): {
                "sor": _share(allocated[p], capacity[p]),
                "gfr_mean": _share(fragmented[p], nodes[p]),
                "gpu_hours": allocated[p] / GPU / (HOUR / SECOND),
            }
            for p in range(len(allocated))
        },
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _jtted(
    state: ClusterState, recorder: Recorder, table: JobTable, started: np.ndarray, sizes: dict[str, np.ndarray]
) -> Any:
    jobs = state.jobs[: len(state.ids)]
    rows = np.flatnonzero(started & (jobs[:, c.J_MILLI] > 0))
    rows = rows[rows < len(recorder.spans)]
    rows = rows[recorder.spans[rows, T_NODES] > 0]  # jobs whose start was recorded
    slowdowns = recorder.model.of_all(recorder.shapes(), recorder.spans, rows)
    fewest = table.fewest if table.fewest is not None else _fewest(recorder)
    return jtted(recorder.spans, fewest, rows, slowdowns, {k: m[rows] for k, m in sizes.items()})


def _useful_and_busy(
    state: ClusterState, recorder: Recorder, table: JobTable, served: np.ndarray, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each job's run time with all its pods and without lost work, and its actual run time."""
    jobs = state.jobs[: len(state.ids)]
    narrow = np.array([bool(shape.ceiling) for shape in state.shapes.shapes], dtype=np.bool_)[jobs[:, c.J_SHAPE]]
    rows = np.flatnonzero(narrow & (table.first_start >= 0))
    useful, busy = served.copy(), served.copy()
    useful[rows] = (served[rows] * (jobs[rows, c.J_MILLI] / np.maximum(table.gpus[rows], 1))).astype(np.int64)
    busy[rows] = np.where(table.end[rows] >= 0, table.end[rows], end) - table.submit[rows] - table.wait[rows]
    for row, work in recorder.lost_work.items():
        useful[row] = max(int(useful[row]) - work, 0)
    return useful, busy


def _by_queue(
    state: ClusterState, recorder: Recorder, table: JobTable, admitted: np.ndarray, end: int, quantile: str
) -> Any:
    """Return for each tenant queue: jobs, waits, GPU-hours, share of the GPU time in service, and rho (fairness.py)."""
    jobs = state.jobs[: len(state.ids)]
    running = table.status == JobStatus.RUNNING
    served = jobs[:, c.J_ATTAINED] + np.where(running, end - jobs[:, c.J_SINCE], 0)
    nominal = {name: nominal_gpus(state.quota_usage.queue_config, name) for name in state.queues}
    if any(nominal.values()):
        useful, busy = _useful_and_busy(state, recorder, table, served, end)
    in_service = sum(recorder.integral(rec.I_CAPACITY)) / GPU / (HOUR / SECOND)
    result = {}
    for name, code in state.queues.items():
        own = table.queue == code
        # Hours as floats: exact integers would exceed 64 bits, and this is the last division.
        hours = float((served[own] / HOUR * (jobs[own, c.J_MILLI] / GPU)).sum())
        result[name] = {
            "jobs": int(own.sum()),
            "wait_s": spread(table.wait[own & admitted], quantile),
            "gpu_hours": hours,
            "sor": _share(hours, in_service),
            "rho": rho(table, useful, busy, own & admitted, nominal[name]) if nominal[name] else None,
        }
    return result
