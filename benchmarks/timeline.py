"""Backfilling with a reservation for each of 10,000 waiting jobs, on 12,500 full nodes of 8 GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Figure, cpu_seconds
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.job import Demand, Job, PodGroup
from kant.model.units import DAY, MINUTE
from kant.placement.calendar.calendar import Calendar
from kant.workload.cluster_file import read_cluster

NODES = 12_500
SLOTS = 8
WAITING = 10_000
GRID = 10 * MINUTE
"""The rival counts time in steps of this length, and what lies beyond its `HORIZON` not at all."""
HORIZON = 1008
RIVALED = 20
"""Jobs that the rival does, of those waiting."""
AGAIN = 40
FIRST_WAITING = 1_000_000

Ask = tuple[int, int, int]
"""Pods, GPUs of each, duration."""


def measure() -> Iterator[Figure]:
    asks = waiting_jobs()
    state = ClusterState(read_cluster(f"{NODES}x{SLOTS}"))
    shapes = {(pods, gpus): state.shapes.of(Job("x", 0, (PodGroup(pods, Demand(gpus)),))) for pods, gpus, _ in asks}

    def promise(calendar: Calendar, asks: list[Ask]) -> None:
        for key, (pods, gpus, duration) in enumerate(asks, FIRST_WAITING):
            found = calendar.earliest(shapes[pods, gpus], duration, 0)
            assert found is not None
            calendar.add(key, found[1], found[0], found[0] + duration)

    few, calendar = running_jobs(state), running_jobs(state)
    free = grid_of(few)
    theirs, _ = cpu_seconds(lambda: [promise_on_grid(free, *ask) for ask in asks[:RIVALED]])
    promise(few, asks[:RIVALED])
    seconds, _ = cpu_seconds(lambda: promise(calendar, asks))
    yield Figure(
        "timeline-10000-promises", seconds, "s", theirs / RIVALED * WAITING / seconds,
        "NumPy over nodes and steps of ten minutes", "looks at nodes whose bound lies before the start",
    )  # fmt: skip
    durations = [2 * MINUTE, 35 * MINUTE, 100 * MINUTE, 420 * MINUTE, DAY]
    for pods, gpus in ((1, 1), (1, 8), (8, 8), (64, 8)):
        work = partial(ask_again, calendar, shapes[pods, gpus], durations)
        work()
        seconds, asked = cpu_seconds(work)
        yield Figure(
            f"timeline-{pods}x{gpus}", 1e6 * seconds / asked, "µs", None, "", "a look at the bound of every node"
        )


def ask_again(calendar: Calendar, shape: Shape, durations: list[int]) -> int:
    """Ask for the earliest start many times, each time for a little longer; returns how often."""
    for more in range(AGAIN):
        for duration in durations:
            calendar.earliest(shape, duration + more, 0)
    return AGAIN * len(durations)


def running_jobs(state: ClusterState, seed: int = 3) -> Calendar:
    """Every GPU taken by jobs of 1 to 8 GPUs that end within minutes to days."""
    calendar = Calendar(state.empty, state.table, state.shapes)
    draw = np.random.Generator(np.random.PCG64(seed))
    key = 0
    for node in range(NODES):
        used = 0
        while used < SLOTS:
            gpus = min(int(draw.choice((1, 2, 4, 8))), SLOTS - used)
            mask = ((1 << gpus) - 1) << used
            pieces = np.array([[node, 1, mask, 1000, 0, 0, gpus]], dtype=np.int64)
            calendar.add(key, pieces, -1, some_duration(draw))
            used += gpus
            key += 1
    return calendar


def some_duration(draw: np.random.Generator) -> int:
    """Two minutes to three days, equally many of each order of magnitude."""
    return int(np.exp(draw.uniform(np.log(2 * MINUTE), np.log(3 * DAY))))


def waiting_jobs(seed: int = 4) -> list[Ask]:
    """Seven of ten want one pod of 1 to 8 GPUs, the others 2 to 64 whole nodes."""
    draw = np.random.Generator(np.random.PCG64(seed))
    asks = []
    for _ in range(WAITING):
        single = draw.random() < 0.7
        pods, gpus = (1, int(draw.choice((1, 2, 4, 8)))) if single else (int(draw.choice((2, 4, 8, 16, 32, 64))), SLOTS)
        asks.append((pods, gpus, some_duration(draw)))
    return asks


def grid_of(calendar: Calendar) -> np.ndarray:
    """Free GPUs of each node in each step of time."""
    free = np.full((NODES, HORIZON), SLOTS, dtype=np.int8)
    for key in range(len(calendar)):
        piece = calendar.allocation_of(key)[0]
        free[piece[0], : -(-calendar.expected_end(key) // GRID)] -= int(piece[2]).bit_count()
    return free


def promise_on_grid(free: np.ndarray, pods: int, gpus: int, duration: int) -> None:
    """Find the first step from which enough nodes have the GPUs free for as long as it takes, and take them."""
    steps = -(-duration // GRID)
    lacks = np.zeros((NODES, HORIZON + 1), dtype=np.int16)
    np.cumsum(free < gpus, axis=1, out=lacks[:, 1:])
    fits = lacks[:, steps:] == lacks[:, : HORIZON + 1 - steps]
    start = int(np.argmax(fits.sum(axis=0) >= pods))
    free[np.flatnonzero(fits[:, start])[:pods], start : start + steps] -= gpus
