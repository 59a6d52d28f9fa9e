"""Cycles with 10,000 waiting jobs on 12,500 full nodes: EASY, and conservative, where each job gets a reservation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Figure, cpu_seconds
from kant.cluster.state import ClusterState
from kant.model.decision import Plan, Release, Reserve, Start
from kant.model.event import JobFinished, JobReleased, JobReserved, JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.units import HOUR, MINUTE
from kant.queueing.discipline import Discipline
from kant.queueing.disciplines.conservative import Conservative
from kant.queueing.disciplines.easy import Easy
from kant.scheduler.cycle import Scheduler
from kant.testing.builders import make_profile
from kant.workload.cluster_file import read_cluster

NODES = 12_500
WAITING = 10_000
ROUNDS = 20


def measure() -> Iterator[Figure]:
    for name, policy in (("easy", Easy()), ("conservative", Conservative())):
        yield from cycles(name, policy)


def full(draw: np.random.Generator, nodes: int = NODES) -> tuple[ClusterState, list[tuple[int, str]]]:
    """A cluster whose nodes are full of jobs of 1 to 64 nodes, or of parts of one; their ends in order."""
    state = ClusterState(read_cluster(f"{nodes}x8"))
    ends: list[tuple[int, str]] = []

    def begin(pieces: list[list[int]], pods: int, gpus: int) -> None:
        left = int(draw.exponential(8 * HOUR)) + MINUTE
        name = f"r{len(ends)}"
        state.apply(JobSubmitted(0, Job(name, 0, (PodGroup(pods, Demand(gpus)),), estimate=left)))
        state.apply(JobStarted(0, name, np.array(pieces, dtype=np.int64)))
        ends.append((left, name))

    node = 0
    while node < nodes:
        if draw.random() < 0.5:
            span = min(int(draw.choice([1, 2, 4, 8, 16, 32, 64])), nodes - node)
            begin([[n, 1, 255, 1000, 0, 0, 8] for n in range(node, node + span)], span, 8)
            node += span
        else:
            used = 0
            while used < 8:
                gpus = int(draw.choice([size for size in (1, 2, 4, 8) if used + size <= 8]))
                begin([[node, 1, ((1 << gpus) - 1) << used, 1000, 0, 0, gpus]], 1, gpus)
                used += gpus
            node += 1
    return state, sorted(ends)


def waiting(draw: np.random.Generator, count: int = WAITING) -> list[Job]:
    """70 % jobs of 1 to 8 GPUs, 30 % gangs of 2 to 64 whole nodes, for minutes to days."""
    jobs = []
    for i in range(count):
        pods = 1 if draw.random() < 0.7 else int(draw.choice([2, 4, 8, 16, 32, 64]))
        gpus = int(draw.choice([1, 2, 4, 8])) if pods == 1 else 8
        runtime = int(np.exp(draw.normal(8.5, 1.5)) * 1_000_000) + MINUTE
        jobs.append(Job(f"w{i}", 1, (PodGroup(pods, Demand(gpus)),), queue=f"q{i % 13}", estimate=runtime))
    return jobs


def carry_out(state: ClusterState, plan: Plan) -> None:
    for decision in plan.decisions:
        match decision:
            case Start(job=job, allocation=allocation):
                state.apply(JobStarted(plan.time, job, allocation))
            case Reserve(job=job, start=start, end=end, allocation=allocation):
                state.apply(JobReserved(plan.time, job, start, end, allocation))
            case Release(job=job):
                state.apply(JobReleased(plan.time, job))


def cycles(name: str, policy: Discipline) -> Iterator[Figure]:
    """The first cycle that sees the queue, and the mean of those that follow: one job ends, early, and one arrives."""
    warm_up(policy)
    draw = np.random.default_rng(7)
    state, ends = full(draw)
    scheduler = Scheduler(state, make_profile("fifo", policy, "best-fit"))
    carry_out(state, scheduler.cycle(0))
    for job in waiting(draw):
        state.apply(JobSubmitted(1, job))
    first, plan = cpu_seconds(lambda: scheduler.cycle(1))
    carry_out(state, plan)
    blind = Scheduler(state, make_profile("fifo", "best-effort", "best-fit"))
    rival, _ = cpu_seconds(lambda: blind.cycle(1))
    promises = sum(isinstance(decision, Reserve) for decision in plan.decisions)
    yield Figure(
        f"{name}-first-cycle", 1e3 * first, "ms", rival / first, "best-effort on the same queue",
        f"the {promises} promises made and {len(plan.decisions) - promises} other decisions",
    )  # fmt: skip
    spent, now = 0.0, 1
    for i in range(ROUNDS):
        now += MINUTE
        due = [entry for entry in ends if entry[0] <= now]
        early = ends[len(due) + int(draw.integers(0, 1000))]
        for entry in [*due, early]:
            state.apply(JobFinished(now, entry[1]))
            ends.remove(entry)
        state.apply(JobSubmitted(now, Job(f"n{i}", now, (PodGroup(1, Demand(1)),), estimate=HOUR)))
        seconds, plan = cpu_seconds(lambda now=now: scheduler.cycle(now))
        spent += seconds
        carry_out(state, plan)
    yield Figure(
        f"{name}-cycle", 1e3 * spent / ROUNDS, "ms", rival / (spent / ROUNDS), "best-effort on the same queue",
        "a search for each waiting job before the start that it is promised: something came free sooner",
    )  # fmt: skip


def warm_up(policy: Discipline) -> None:
    """Compile what the cycles call, on a cluster that costs nothing."""
    draw = np.random.default_rng(1)
    state, ends = full(draw, 100)
    scheduler = Scheduler(state, make_profile("fifo", policy, "best-fit"))
    for job in waiting(draw, 100):
        state.apply(JobSubmitted(0, job))
    carry_out(state, scheduler.cycle(0))
    for now, name in ends[:50]:
        state.apply(JobFinished(now, name))
        carry_out(state, scheduler.cycle(now))
