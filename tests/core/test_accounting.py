"""What is counted stays exact at the size of the largest clusters and over years."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.core.small_runs import gangs, uniform

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.metrics import recorder as rec
from kant.metrics.recorder import Recorder
from kant.metrics.statistics import spread
from kant.metrics.summary import job_table, summarise
from kant.model.event import JobFinished, JobStarted, NodeChanged
from kant.model.units import DAY, GPU, SECOND
from kant.sim.run import simulate
from kant.testing import make_cluster, make_job, make_profile, submitted
from kant.testing.drawn import generator

YEAR = 365 * DAY
NODES = 12_500


def whole_nodes(first: int, last: int) -> np.ndarray:
    nodes = np.arange(first, last)
    return np.stack([nodes, *(np.full(len(nodes), value) for value in (1, 255, 1000, 0, 0, 8))], axis=1).astype(
        np.int64
    )


def test_integrals_are_exact_with_a_hundred_thousand_gpus_over_years() -> None:
    """Uneven spans, in microseconds, against integers without a bound."""
    state = ClusterState(make_cluster(*[8] * NODES))
    recorder = Recorder(state)
    exact = [0, 0, 0, 0]
    draw = generator(4)
    now, running = 0, 0
    for step in range(60):
        recorder.observe(now)
        if step % 3 == 0:
            first = int(draw.integers(0, NODES // 2))
            job = make_job(f"j{step}", 8, pods=NODES // 2)
            state.apply(submitted(job, at=now))
            if running < 2:
                allocation = whole_nodes(0, NODES // 2) if running == 0 else whole_nodes(NODES // 2, NODES)
                state.apply(JobStarted(now, job.id, allocation))
                running += 1
        if step % 7 == 0 and step and running == 2:
            state.apply(NodeChanged(now, f"n{first}", 1))
        recorder.observe(now)
        span = int(draw.integers(1, YEAR // 4)) if step % 5 else int(draw.integers(1, 999_999))
        held = [c.P_ALLOCATED, c.P_CAPACITY, c.P_FRAGMENTED, c.P_NODES]
        for kind, column in enumerate(held):
            exact[kind] += int(state.pools[0, column]) * span
        now += span
    recorder.observe(now)
    assert now > 5 * YEAR and exact[0] > 1 << 63
    for kind, total in zip((rec.I_ALLOCATED, rec.I_CAPACITY, rec.I_FRAGMENTED, rec.I_NODES), exact, strict=True):
        seconds, rest = (int(value) for value in recorder.integrals[0, kind : kind + 2])
        assert seconds * SECOND + rest == total
        assert recorder.integral(kind) == [pytest.approx(total / SECOND, rel=1e-15)]


def test_the_summary_of_a_full_year_of_a_hundred_thousand_gpus_is_right() -> None:
    state = ClusterState(make_cluster(*[8] * NODES))
    recorder = Recorder(state)
    state.apply(submitted(make_job("all", 8, pods=NODES)))
    state.apply(submitted(make_job("waits", 8, pods=NODES)))
    recorder.observe(0)
    state.apply(JobStarted(YEAR // 4, "all", whole_nodes(0, NODES)))
    recorder.started(0, state.running[0])
    recorder.observe(YEAR // 4)
    state.apply(JobFinished(YEAR, "all"))
    recorder.observe(YEAR)
    found = summarise(state, recorder, job_table(state, YEAR), YEAR, "linear")
    assert found["sor"] == pytest.approx(0.75, rel=1e-12)
    assert found["gar"]["mean"] == pytest.approx(0.75, rel=1e-12)
    assert found["gfr"] == {"mean": 0.0, "median": 0.0}
    hours = NODES * 8 * 0.75 * 365 * 24
    assert found["by_queue"]["default"]["gpu_hours"] == pytest.approx(hours, rel=1e-12)
    assert sum(pool["gpu_hours"] for pool in found["by_pool"].values()) == pytest.approx(hours, rel=1e-12)
    assert found["wait_s"]["max"] == YEAR / SECOND
    assert (found["completed"], found["censored"]) == (1, 1)


def test_the_sum_of_many_long_waits_does_not_overflow() -> None:
    """Half a million jobs that wait for a year wait longer together than 64 bits of microseconds hold."""
    found = spread(np.full(500_000, YEAR, dtype=np.int64))
    assert found["mean"] == YEAR / SECOND
    assert found["sum"] == 500_000 * YEAR / SECOND


@pytest.mark.parametrize("order", ["fifo", "srtf", "las"])
@pytest.mark.parametrize("discipline", ["strict", "best-effort", "preemptive", "pooled", "repack"])
def test_the_metrics_of_a_run_are_those_computed_from_its_intervals(order: str, discipline: str) -> None:
    """GAR, SOR and GFR once more, from who held which device when."""
    from kant.sim.run import RunHooks

    profile = make_profile(order, discipline, "best-fit")
    result = simulate(gangs(), uniform(), profile, hooks=RunHooks(keep_intervals=True))
    summary, end = result.summary, result.end
    assert summary["completed"] + summary["censored"] + summary["rejected"] == summary["jobs"] == 60
    held = sum(int(mask).bit_count() * int(milli) * int(b - a) for _, _, mask, milli, a, b in result.intervals.tolist())
    capacity = uniform().gpus * GPU * end
    assert summary["sor"] == pytest.approx(held / capacity, rel=1e-12)
    assert summary["gar"]["mean"] == pytest.approx(held / capacity, rel=1e-12)
    assert summary["gfr"]["mean"] == pytest.approx(broken_time(result.intervals, 6) / (6 * end), rel=1e-12)
    gpu_hours = sum(queue["gpu_hours"] for queue in summary["by_queue"].values())
    assert gpu_hours == pytest.approx(held / GPU / SECOND / 3600, rel=1e-12)
    devices_are_given_once(result.intervals)


def broken_time(intervals: np.ndarray, nodes: int) -> int:
    """Node-time in which some but not all of a node's 8 GPUs are held."""
    total = 0
    for node in range(nodes):
        own = intervals[intervals[:, 1] == node].tolist()
        times = sorted({time for row in own for time in row[4:6]})
        for a, b in itertools.pairwise(times):
            used = sum(row[2].bit_count() * row[3] for row in own if row[4] <= a and row[5] >= b)
            total += (b - a) * (0 < used < 8 * GPU)
    return total


def devices_are_given_once(intervals: np.ndarray) -> None:
    by_device: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rows: list[list[Any]] = intervals.tolist()
    for _, node, mask, _, start, end in rows:
        for device in range(mask.bit_length()):
            if mask >> device & 1:
                by_device.setdefault((node, device), []).append((start, end))
    for spans in by_device.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
