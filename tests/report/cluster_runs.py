"""Runs to report on: a small first-fit loop over real-looking jobs."""

from __future__ import annotations

import hashlib
import heapq
from typing import Any

import numpy as np

from kant.metrics.result import JobTable, RunResult, Series
from kant.model.node import ClusterSpec, Node
from kant.model.status import JobStatus
from kant.model.units import DAY, GPU, HOUR, SECOND, SIZE_CLASSES, size_class

QUEUES = ("research", "product", "inference", "batch", "vision", "speech", "robotics", "finance", "interns")


def make_cluster(nodes: int = 1024, gpus: int = 8, leaf: int = 32) -> ClusterSpec:
    return ClusterSpec(
        "lab",
        tuple(
            Node(f"n{i:05d}", gpus, "H800" if i % 1024 < 768 else "A800", leaf=f"leaf{i // leaf}" if leaf else "")
            for i in range(nodes)
        ),
    )


def make_run(
    profile: str = "kant",
    cluster: ClusterSpec | None = None,
    jobs: int = 20_000,
    seed: int = 7,
    packed: bool = True,
    interrupted: bool = False,
) -> RunResult:
    """First come, with skipping; `packed` takes the fullest node that fits, else the emptiest."""
    cluster = cluster or make_cluster()
    rng = np.random.default_rng(seed)
    period = 14 * DAY
    size = rng.choice([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], jobs, p=SIZE_SHARES)
    size = np.minimum(size, max(1, cluster.gpus // 2))
    runtime = (rng.lognormal(9.3, 1.2, jobs) * SECOND).astype(np.int64) + SECOND
    load = float((np.maximum(size, 0.5) * runtime).sum())
    runtime = np.minimum((runtime * (0.97 * cluster.gpus * period / max(load, 1))).astype(np.int64) + SECOND, 5 * DAY)
    submit = np.sort(rng.integers(0, period, jobs))
    return _run(
        profile, cluster, size, runtime, submit, rng.integers(0, len(QUEUES), jobs) ** 2 // 9, packed, interrupted
    )


SIZE_SHARES = np.array([12, 42, 10, 9, 14, 5, 3, 2, 1.4, 0.8, 0.5, 0.2, 0.1]) / 100


def _run(
    profile: str,
    cluster: ClusterSpec,
    size: Any,
    runtime: Any,
    submit: Any,
    queue: Any,
    packed: bool,
    interrupted: bool,
) -> RunResult:
    nodes, per = len(cluster.nodes), cluster.nodes[0].gpus if cluster.nodes else 0
    free = np.full(nodes, per * GPU)
    devices = np.full((nodes, per), GPU)
    whole, best = np.full(nodes, per), np.full(nodes, GPU if per else 0)
    running: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    waiting: list[int] = []
    begun, ended = np.full(len(size), -1), np.full(len(size), -1)
    intervals: list[tuple[int, int, int, int, int, int]] = []
    rows: list[tuple[int, ...]] = []
    asked = 0

    def change(pieces: list[tuple[int, int, int]], sign: int) -> None:
        for node, mask, milli in pieces:
            devices[node, [d for d in range(per) if mask >> d & 1]] += sign * milli
            free[node] += sign * milli * mask.bit_count()
            whole[node], best[node] = (devices[node] == GPU).sum(), devices[node].max()

    def place(job: int, now: int) -> bool:
        need = int(size[job])
        pieces: list[tuple[int, int, int]] = []
        if need == 0:
            fits = np.flatnonzero(best >= 500)
            if not len(fits):
                return False
            node = int(fits[np.argmin(free[fits])])
            device = int(np.argmin(np.where(devices[node] >= 500, devices[node], 9999)))
            pieces.append((node, 1 << device, 500))
        else:
            each = min(need, per)
            fits = np.flatnonzero(whole >= each)
            count = -(-need // per)
            if len(fits) < count:
                return False
            order = fits[np.argsort(whole[fits] if packed else -whole[fits], kind="stable")][:count]
            for node in order.tolist():
                chosen = np.flatnonzero(devices[node] == GPU)[: min(each, need)]
                need -= len(chosen)
                pieces.append((node, sum(1 << int(d) for d in chosen), GPU))
        change(pieces, -1)
        stop = now + int(runtime[job])
        begun[job] = now
        heapq.heappush(running, (stop, job, pieces))
        intervals.extend((job, node, mask, milli, now, stop) for node, mask, milli in pieces)
        return True

    end, at, now = 15 * DAY, 0, 0
    while now < end and (at < len(size) or running):
        now = min(int(submit[at]) if at < len(size) else end, running[0][0] if running else end)
        now = min(now, end)
        room = False
        while running and running[0][0] <= now:
            stop, job, pieces = heapq.heappop(running)
            ended[job], room = stop, True
            change(pieces, 1)
        if room:
            for job in waiting[:12]:
                if place(job, now):
                    waiting.remove(job)
                    asked -= max(int(size[job]) * GPU, 500)
        while at < len(size) and submit[at] <= now:
            if not place(at, now):
                waiting.append(at)
                asked += max(int(size[at]) * GPU, 500)
            at += 1
        used = per * GPU - free
        broken = int(((used > 0) & (used < per * GPU)).sum())
        rows.append((now, int(used.sum()), cluster.gpus * GPU, broken, nodes, len(waiting), asked))
    end = max(now, HOUR)
    table = np.array(intervals, dtype=np.int64).reshape(-1, 6)
    table[:, 5] = np.minimum(table[:, 5], end)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 7).T
    names = ("time", "allocated", "in_service", "fragmented", "nodes", "waiting_jobs", "waiting_gpus")
    wait = np.where(begun >= 0, begun - submit, end - submit)
    job_table = JobTable(
        id=[f"job-{i}" for i in range(len(size))],
        queue=np.asarray(queue, dtype=np.int64),
        gpus=np.maximum(size * GPU, 500).astype(np.int64),
        submit=submit.astype(np.int64),
        first_start=begun,
        end=ended,
        wait=wait.astype(np.int64),
        preemptions=np.zeros(len(size), dtype=np.int64),
        status=np.where(
            ended >= 0, JobStatus.FINISHED, np.where(begun >= 0, JobStatus.RUNNING, JobStatus.PENDING)
        ).astype(np.int64),
    )
    series = Series(**dict(zip(names, columns, strict=True)))
    return RunResult(
        profile=profile,
        workload="synthetic, 14 days",
        cluster=cluster,
        summary=summarise(series, job_table, end),
        series=series,
        jobs=job_table,
        queues=QUEUES,
        end=end,
        interrupted=interrupted,
        intervals=table,
    )


def quantiles(seconds: Any) -> dict[str, Any]:
    if not len(seconds):
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    marks = np.quantile(seconds, [0.5, 0.9, 0.99, 1.0], method="inverted_cdf")
    return {"mean": float(seconds.mean()), **dict(zip(("p50", "p90", "p99", "max"), map(float, marks), strict=True))}


def summarise(series: Series, jobs: JobTable, end: int) -> dict[str, Any]:
    span = np.diff(np.append(series.time, end))
    gar, gfr = (series.allocated / np.maximum(series.in_service, 1), series.fragmented / np.maximum(series.nodes, 1))
    weight = max(int(span.sum()), 1)
    done = jobs.status == JobStatus.FINISHED
    classes = np.array([size_class(int(-(-g // GPU))) for g in jobs.gpus.tolist()], dtype=object)
    by_size = {
        name: {
            "count": int((classes == name).sum()),
            **quantiles(jobs.wait[classes == name] / SECOND),
            "censored": int((~done & (classes == name)).sum()),
        }
        for name, _ in SIZE_CLASSES
    }
    return {
        "jobs": len(jobs.id),
        "completed": int(done.sum()),
        "censored": int((~done).sum()),
        "rejected": 0,
        "makespan_s": end / SECOND,
        "jct_s": quantiles((jobs.end - jobs.submit)[done] / SECOND),
        "wait_s": quantiles(jobs.wait / SECOND),
        "wait_by_size": by_size,
        "gar": {"mean": float((gar * span).sum() / weight), "median": float(np.median(gar)) if len(gar) else None},
        "gfr": {"mean": float((gfr * span).sum() / weight), "median": float(np.median(gfr)) if len(gfr) else None},
        "sor": float((gar * span).sum() / weight),
        "sor_all_nodes": None,
        "jtted": {"mean": 1.042, "by_size": {name: {"mean": 1 + i / 40} for i, (name, _) in enumerate(SIZE_CLASSES)}},
        "by_queue": {
            name: {
                "jobs": 3,
                "gpu_hours": 12.5 * i,
                "sor": i / 100,
                "wait_s": quantiles(jobs.wait[jobs.queue == i] / SECOND),
            }
            for i, name in enumerate(QUEUES)
        },
        "by_pool": {"H800": {"sor": 0.9, "gfr_mean": 0.01, "gpu_hours": 99.0}, "A800": {"sor": None}},
        "preemptions": 3,
        "evictions": 0,
        "decisions": 2 * len(jobs.id),
        "digest": hashlib.sha256(jobs.wait.tobytes()).hexdigest(),
        "cpu_s": 12.5,
        "seed": 0,
    }
