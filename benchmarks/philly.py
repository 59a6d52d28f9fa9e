"""Philly's jobs on 1,408 GPUs in queues of their own virtual clusters, under FIFO, SJF and SRTF."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import rivals
from benchmarks.data import DATA, PHILLY_NODES
from benchmarks.measure import Figure, cpu_seconds
from kant.model.node import ClusterSpec, Node
from kant.model.units import DAY, SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.sim.warm import warm_up
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload

SHORT_DAYS = 10
"""What the short form takes of the trace's two months."""

BOUND_BY = "the compiled call; then the text of the plans, and the jobs that are still there where a call returns"
EVICTING = "Python between kernels: the events, the cycles and the plan of a job (python -m benchmarks.calls counts it)"


def measure(short: bool = False) -> Iterator[Figure]:
    workload, cluster = philly()
    if short:
        workload = workload.take(workload.submit < workload.submit[0] + SHORT_DAYS * DAY)
    submit, runtime, gpus = (column.tolist() for column in (workload.submit, workload.runtime, workload.gpus))
    parts = []
    for code, name in enumerate(workload.queues):
        nodes = PHILLY_NODES.get(name, 0)
        parts.append((np.flatnonzero((workload.queue == code) & (workload.gpus <= 8 * nodes)).tolist(), nodes))

    def _in_order(order: list[int]) -> Callable[[list[int], int], int]:
        return lambda rows, nodes: rivals.strict_nodes(
            *([column[i] for i in rows] for column in (order, submit, runtime, gpus)), nodes
        )

    def _stepped(rows: list[int], nodes: int) -> int:
        seconds = ([column[i] // SECOND for i in rows] for column in (submit, runtime))
        return rivals.stepped_srtf(*seconds, [gpus[i] for i in rows], nodes)

    for policy, repeat in (("fifo", 3), ("sjf", 3), ("srtf", 2)):
        if short and policy == "sjf":
            continue
        profile = builtin_profile(f"helios-{policy}")
        warm_up(profile)
        ours, result = cpu_seconds(lambda profile=profile: simulate(workload, cluster, profile), repeat)
        rival = {"fifo": _in_order(submit), "sjf": _in_order(runtime), "srtf": _stepped}[policy]
        theirs, waited = cpu_seconds(lambda rival=rival: sum(rival(*part) for part in parts))
        assert waited == round(result.summary["wait_s"]["sum"] * (1 if policy == "srtf" else 1e6)), "the rival differs"
        yield Figure(
            f"philly-{policy}",
            len(workload) / ours,
            "jobs per CPU-second",
            theirs / ours,
            "plain Python that keeps nothing" + (", second by second" if policy == "srtf" else ""),
            EVICTING if policy == "srtf" else BOUND_BY,
        )


def philly() -> tuple[Workload, ClusterSpec]:
    """October and November of Philly on Helios' virtual clusters; generated where the trace is absent."""
    path = DATA / "philly_jobs.csv.gz"
    if path.exists():
        workload = read_workload(path, format="philly", window=(27 * DAY, 88 * DAY))
        known = np.array([name in PHILLY_NODES for name in workload.queues])
        workload = workload.take(known[workload.queue])
    else:
        workload = generate("philly", jobs=56_000, days=61, seed=1)
        names = tuple(list(PHILLY_NODES)[i % len(PHILLY_NODES)] for i in range(len(workload.queues)))
        workload = workload.take(workload.gpus <= 32)
        object.__setattr__(workload, "queues", names)
    nodes = [
        Node(f"{name}-{i}", 8, queues=(name,), leaf=name) for name, count in PHILLY_NODES.items() for i in range(count)
    ]
    return workload, ClusterSpec("philly", tuple(nodes))
