"""Small fixed runs of every built-in profile. Run as a program, it prints what they decide and sum up as JSON.

The workloads come from a generator written here, so that they are the same with every version of NumPy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.examples import TIMES
from tests.profiles import few

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, SECOND
from kant.scheduler.profile import Profile, builtin_profile
from kant.sim.run import simulate
from kant.workload.workload import Workload, make_workload

MACHINE = ("cpu_s", "jobs_per_cpu_s", "peak_rss_mib")
"""What of a summary is about the machine that ran it."""


def numbers(seed: int) -> Iterator[int]:
    """Numbers below 2^31, from a linear congruential generator of 64 bits (Knuth's MMIX constants)."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield state >> 33


def gangs(seed: int = 1, jobs: int = 60) -> Workload:
    """Jobs with a total of GPUs, in two queues, some of higher priority, some with an overhead."""
    draw = numbers(seed)
    submit = np.cumsum([(next(draw) % 4) * 15 for _ in range(jobs)]) * SECOND
    return make_workload(
        f"gangs{seed}",
        submit - submit[0],
        np.array([1 + next(draw) % 900 for _ in range(jobs)]) * SECOND,
        np.array([(1, 1, 2, 4, 8, 8, 12, 16)[next(draw) % 8] for _ in range(jobs)]),
        priority=np.array([next(draw) % 8 == 0 for _ in range(jobs)], dtype=np.int64),
        queue=np.array([next(draw) % 2 for _ in range(jobs)], dtype=np.int64),
        overhead=np.array([next(draw) % 3 for _ in range(jobs)], dtype=np.int64) * SECOND,
        queues=("batch", "research"),
    )


def pods(seed: int = 2, jobs: int = 90) -> Workload:
    """Single pods with CPU and memory: shares, whole GPUs, none."""
    draw = numbers(seed)
    kinds = [
        ((1, 470), (1, 250), (1, 900), (1, 1000), (2, 1000), (4, 1000), (0, 1000))[next(draw) % 7] for _ in range(jobs)
    ]
    return make_workload(
        f"pods{seed}",
        np.arange(jobs) * SECOND,
        np.full(jobs, 3600 * SECOND),
        np.array([gpus for gpus, _ in kinds]),
        pods=np.ones(jobs, dtype=np.int64),
        milli=np.array([milli for _, milli in kinds]),
        cpu=np.array([(1 + next(draw) % 12) * 1000 for _ in range(jobs)]),
        memory=np.array([(next(draw) % 8) * 1024 for _ in range(jobs)]),
        ids=[f"p{next(draw)}-{i}" for i in range(jobs)],
    )


def uniform() -> ClusterSpec:
    """Six nodes of 8 GPUs in three leaves."""
    return ClusterSpec("6x8", tuple(Node(f"n{i}", 8, leaf=f"leaf{i // 2}") for i in range(6)))


def mixed() -> ClusterSpec:
    """Twelve nodes of several sizes and models."""
    kinds = ((8, "G2"), (4, "T4"), (2, "T4"), (1, "A10"))
    nodes = [Node(f"m{i}", *kinds[i % 4], 16_000 * kinds[i % 4][0], 65_536 if i % 3 else FOREVER) for i in range(12)]
    return ClusterSpec("mixed", tuple(nodes))


def small_run(profile: Profile, parts: int = 1) -> RunResult:
    """One run of this profile: static ones pack pods, the others run gangs. A `parts`-th of the jobs comes."""
    if profile.simulation.get("static"):
        return simulate(pods(2, 90 // parts), mixed(), profile, seed=42)
    return simulate(gangs(1, 60 // parts), uniform(), profile, seed=42)


def small_pods_run(profile: Profile, parts: int = 1) -> RunResult:
    """One run of this profile with pods that come and go on a mixed cluster."""
    return simulate(pods(3, 90 // parts), mixed(), profile, seed=7)


def small_services_run(profile: Profile, parts: int = 1) -> RunResult:
    """One run of this profile with gangs, and pods of five services beside them."""
    training, serving = gangs(4, 60 // parts), pods(5, 90 // parts)
    both = {
        column: np.concatenate([getattr(training, column), getattr(serving, column)])
        for column in ("submit", "runtime", "gpus", "pods", "milli")
    }
    title = np.concatenate([np.zeros(len(training), dtype=np.int64), 1 + np.arange(len(serving)) % 5])
    titles = ("", *(f"service{i}" for i in range(5)))
    jobs = make_workload("services4", **both, title=title, titles=titles)
    return simulate(jobs.take(np.argsort(jobs.submit, kind="stable")), uniform(), profile, seed=5)


def outcome(result: RunResult) -> dict[str, Any]:
    """What a run decided and summed up, without what is about the machine."""
    return {key: value for key, value in result.summary.items() if key not in MACHINE}


PARTS = 1 if TIMES >= 2 else 2


def all_outcomes() -> dict[str, Any]:
    """The outcomes of the small runs of built-in profiles that have every policy, of half their jobs."""
    found = {}
    for name in few():
        profile = builtin_profile(name)
        found[name] = outcome(small_run(profile, PARTS))
        if not profile.simulation:
            found[f"{name}, pods"] = outcome(small_pods_run(profile, PARTS))
        if profile.strategies:
            found[f"{name}, services"] = outcome(small_services_run(profile, PARTS))
    return found


if __name__ == "__main__":
    json.dump(all_outcomes(), sys.stdout)
