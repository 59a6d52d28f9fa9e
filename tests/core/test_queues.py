"""The queue serves as a walk over all of it would, and strict FIFO as a simulator of thirty lines does."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from tests.examples import examples, part

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Plan, Start
from kant.model.units import SECOND
from kant.placement.placer import Placer
from kant.scheduler.profile import Profile
from kant.scheduler.registry import policies
from kant.sim.run import simulate
from kant.testing import Harness, at_random, make_cluster, make_jobs, make_profile, never
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator


def whole_queue(state: ClusterState, profile: Profile, seed: int, now: int, strict: bool) -> dict[str, Any]:
    """Who starts where, by trying every waiting job in order."""
    rows = np.fromiter(state.pending, dtype=np.int64, count=len(state.pending))
    keys = profile.order.keys(state.jobs, rows, now).tolist()
    ranked = sorted(zip((-state.jobs[rows, c.J_PRIORITY]).tolist(), keys, rows.tolist(), strict=True))
    placer = Placer(Snapshot(state), profile.placement, seed)
    starts: dict[str, Any] = {}
    blocked: set[int] = set()
    for _, _, row in ranked:
        queue = int(state.jobs[row, c.J_QUEUE])
        if placer.never_fits(state.shape_of(row)) is not None or queue in blocked:
            continue
        result = placer.place(state.shape_of(row), row)
        if not isinstance(result, NoFit):
            starts[state.ids[row]] = result.tolist()
        elif strict:
            blocked.add(queue)
    return starts


@pytest.mark.parametrize("refuse", [0.0, 0.3])
@pytest.mark.parametrize("order", ["fifo", "sjf", "srtf"])
@pytest.mark.parametrize("discipline", ["best-effort", "strict"])
def test_the_lanes_start_whom_a_walk_over_the_whole_queue_starts(discipline: str, order: str, refuse: float) -> None:
    checked, case = 0, ("fifo", "sjf", "srtf").index(order) + (discipline == "strict") + (refuse > 0)
    placements = part(list(enumerate(policies("placement"))), case, 4)
    for seed, placement in placements:
        draw = generator(seed)
        profile = make_profile(order, discipline, placement)
        drivers = at_random(refuse, seed) if refuse else never
        harness = Harness(draw_cluster(draw), profile, seed=seed, refuse=drivers, check=False)

        def look(plan: Plan, harness: Harness = harness, profile: Profile = profile, seed: int = seed) -> None:
            nonlocal checked
            starts = {d.job: d.allocation.tolist() for d in plan.decisions if isinstance(d, Start)}
            naive = whole_queue(harness.state, profile, seed, plan.time, discipline == "strict")
            assert starts == naive
            checked += len(starts)

        harness.before_carrying_out = look
        harness.run(draw_arrivals(draw, 80, Mould(groups=1), gap=40))
    assert checked > 12 * len(placements)


Rows = list[tuple[int, int, int]]
"""Jobs as (submit, run time, GPUs), in order of submission."""


class Nodes:
    """Nodes of 8 GPUs under HeliosArtifact's consolidated placement (REFERENCE 2.3)."""

    def __init__(self, count: int) -> None:
        self.free = [8] * count

    def place(self, gpus: int) -> list[tuple[int, int]] | None:
        if gpus <= 8:
            fitting = [(free, node) for node, free in enumerate(self.free) if free >= gpus]
            return self._take([(min(fitting)[1], gpus)]) if fitting else None
        whole, rest = divmod(gpus, 8)
        idle = [node for node, free in enumerate(self.free) if free == 8][:whole]
        if len(idle) < whole:
            return None
        taken = [(node, 8) for node in idle]
        if rest:
            others = [(-free, node) for node, free in enumerate(self.free) if node not in idle]
            if not others or -min(others)[0] < rest:
                return None
            taken.append((min(others)[1], rest))
        return self._take(taken)

    def _take(self, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
        for node, gpus in taken:
            self.free[node] -= gpus
        return taken

    def give(self, taken: list[tuple[int, int]]) -> None:
        for node, gpus in taken:
            self.free[node] += gpus


class Count:
    """A number of GPUs, wherever they are."""

    def __init__(self, gpus: int) -> None:
        self.free = gpus

    def place(self, gpus: int) -> int | None:
        if gpus > self.free:
            return None
        self.free -= gpus
        return gpus

    def give(self, gpus: int) -> None:
        self.free += gpus


def head_of_line(rows: Rows, machine: Any, shortest_first: bool) -> list[int]:
    """When each job starts: at each instant ends, arrivals, and then the queue from its head as far as it goes."""
    starts = [-1] * len(rows)
    queue: list[tuple[int, int]] = []
    ends: list[tuple[int, int, Any]] = []
    instants = sorted({submit for submit, _, _ in rows})
    next_row = 0
    while instants or ends:
        now = min([*instants[:1], *(end for end, _, _ in ends[:1])])
        instants = [instant for instant in instants if instant > now]
        while ends and ends[0][0] == now:
            machine.give(heappop(ends)[2])
        while next_row < len(rows) and rows[next_row][0] == now:
            heappush(queue, (rows[next_row][1] if shortest_first else 0, next_row))
            next_row += 1
        while queue:
            row = queue[0][1]
            taken = machine.place(rows[row][2])
            if taken is None:
                break
            heappop(queue)
            starts[row] = now
            heappush(ends, (now + rows[row][1], row, taken))
    return starts


def some_rows(seed: int, jobs: int, largest: int) -> Rows:
    draw, now, rows = generator(seed), 0, []
    for _ in range(jobs):
        now += int(draw.choice([0, 1, 7, 30]))
        rows.append((now, int(draw.integers(1, 200)), int(draw.integers(1, largest + 1))))
    first = rows[0][0]
    return [(submit - first, runtime, gpus) for submit, runtime, gpus in rows]


def simulated(rows: Rows, nodes: int, profile: Profile) -> list[int]:
    submit, runtime, gpus = zip(*rows, strict=True)
    result = simulate(make_jobs(submit=submit, runtime=runtime, gpus=gpus), make_cluster(*[8] * nodes), profile)
    assert result.summary["completed"] == len(rows)
    return (result.jobs.first_start // SECOND).tolist()


@pytest.mark.parametrize("order", ["fifo", "sjf"])
@pytest.mark.parametrize("seed", range(examples(40)))
def test_strict_order_with_pods_of_one_gpu_starts_when_a_count_of_gpus_says(seed: int, order: str) -> None:
    rows = some_rows(seed, 120, 24)
    profile = make_profile(order, "strict", "first-fit", shape="gpu")
    assert simulated(rows, 3, profile) == head_of_line(rows, Count(24), order == "sjf")


@pytest.mark.parametrize("order", ["fifo", "sjf"])
@pytest.mark.parametrize("seed", range(examples(40)))
def test_strict_order_with_whole_nodes_starts_when_the_published_rule_says(seed: int, order: str) -> None:
    rows = some_rows(100 + seed, 120, 20)
    profile = make_profile(order, "strict", {"policy": "consolidated", "remainder": {"policy": "worst-fit"}})
    assert simulated(rows, 4, profile) == head_of_line(rows, Nodes(4), order == "sjf")
