"""One pod among 12,500 nodes; and a cycle with 1,000 pending gangs there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import rivals
from benchmarks.measure import Figure, cpu_seconds
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Start
from kant.model.event import JobFinished, JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec
from kant.placement.placer import Placer
from kant.placement.policies.best_fit import BestFit
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.workload.cluster_file import read_cluster

NODES = 12_500
SIZES = (1, 2, 4, 8)
ROUNDS = 500


def measure() -> Iterator[Figure]:
    yield one_pod()
    yield pending_gangs()
    yield from growth()


def filled(nodes: int, share: float, seed: int = 0, spec: ClusterSpec | None = None) -> tuple[ClusterState, list[str]]:
    """A cluster of 8-GPU nodes filled with jobs of 1 to 8 GPUs at random, and the ids of its jobs."""
    state = ClusterState(spec or read_cluster(f"{nodes}x8"))
    draw = np.random.default_rng(seed)
    names: list[str] = []
    for node in range(nodes):
        used = 0
        while used < 8 and draw.random() < share:
            gpus = int(draw.choice(SIZES))
            if used + gpus > 8:
                break
            name = f"r{len(names)}"
            state.apply(JobSubmitted(0, Job(name, 0, (PodGroup(1, Demand(gpus)),))))
            mask = ((1 << gpus) - 1) << used
            state.apply(JobStarted(0, name, np.array([[node, 1, mask, 1000, 0, 0, gpus]], dtype=np.int64)))
            names.append(name)
            used += gpus
    return state, names


def one_pod() -> Figure:
    """Best fit of pods of mixed size on a part-filled cluster, each placed for good."""
    state, _ = filled(NODES, 0.7)
    placer = Placer(Snapshot(state), BestFit(), 0)
    shapes = [state.shapes.of(Job("x", 0, (PodGroup(1, Demand(gpus)),))) for gpus in SIZES]
    for shape in shapes:
        placer.place(shape)
    pods = 4000
    ours, _ = cpu_seconds(lambda: [placer.place(shapes[i % 4]) for i in range(pods)])
    free = state.table[:, 4] // 1000

    def rival() -> None:
        for i in range(pods):
            node = rivals.best_fit(free, SIZES[i % 4])
            free[node] -= SIZES[i % 4]

    theirs, _ = cpu_seconds(rival)
    return Figure(
        "place-one-pod",
        1e6 * ours / pods,
        "µs",
        theirs / ours,
        "NumPy argmin over 12,500 nodes",
        "the call into the kernel; the search itself is one root of a tree and log2(nodes) updates",
    )


def pending_gangs() -> Figure:
    """One cycle of Kant's profile over 1,000 pending gangs of 1 to 1,024 GPUs at 12,500 nodes."""
    draw = np.random.default_rng(1)
    sizes = draw.choice([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], size=1000).tolist()
    jobs = [
        Job(f"g{i}", 1, (PodGroup(max(gpus // 8, 1), Demand(min(gpus, 8))),), queue=f"q{i % 10}")
        for i, gpus in enumerate(sizes)
    ]

    def scheduler() -> Scheduler:
        state, _ = filled(NODES, 0.7)
        made = Scheduler(state, builtin_profile("kant"))
        made.cycle(0)
        for job in jobs:
            state.apply(JobSubmitted(1, job))
        return made

    best, plan = min((cpu_seconds(partial(scheduler().cycle, 1)) for _ in range(3)), key=lambda pair: pair[0])
    free = filled(NODES, 0.7)[0].table[:, 4] // 1000

    def rival() -> None:
        for gpus in sizes:
            for _ in range(max(gpus // 8, 1)):
                node = rivals.best_fit(free, min(gpus, 8))
                if node >= 0:
                    free[node] -= min(gpus, 8)

    theirs, _ = cpu_seconds(rival)
    started = sum(isinstance(decision, Start) for decision in plan.decisions)
    return Figure(
        "cycle-1000-gangs",
        1e3 * best,
        "ms",
        theirs / best,
        "NumPy argmin for each pod",
        f"placing {started} gangs that start, pod by pod, and the first look at 11 kinds of pod on every node",
    )


def growth() -> Iterator[Figure]:
    """A cycle after one job ended and one arrived, from 1,000 to 12,500 nodes: its cost must not follow the nodes."""
    costs: dict[int, float] = {}
    for nodes in (1_000, 2_000, 4_000, 8_000, 12_500):
        state, names = filled(nodes, 0.95)
        scheduler = Scheduler(state, builtin_profile("kant"))
        for i, gpus in enumerate(SIZES):
            state.apply(JobSubmitted(1, Job(f"w{i}", 1, (PodGroup(1, Demand(gpus)),))))
        plan = scheduler.cycle(1)
        for decision in plan.decisions:
            if isinstance(decision, Start):
                state.apply(JobStarted(1, decision.job, decision.allocation))

        def turn(state: ClusterState = state, scheduler: Scheduler = scheduler, names: list[str] = names) -> None:
            now = state.now
            for _ in range(ROUNDS):
                now += 1
                job = Job(f"n{now}", now, (PodGroup(1, Demand(SIZES[now % 4])),))
                state.apply(JobFinished(now, names.pop()))
                state.apply(JobSubmitted(now, job))
                for decision in scheduler.cycle(now).decisions:
                    if isinstance(decision, Start):
                        state.apply(JobStarted(now, decision.job, decision.allocation))

        seconds, _ = cpu_seconds(turn, 3)
        costs[nodes] = 1e6 * seconds / ROUNDS
    for nodes, cost in costs.items():
        yield Figure(
            f"cycle-{nodes}-nodes", cost, "µs", cost and costs[1_000] / cost, "the same cycle at 1,000 nodes",
            "what changed: one node and two jobs",
        )  # fmt: skip
