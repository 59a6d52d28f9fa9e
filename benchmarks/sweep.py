"""How busy a sweep keeps all cores: the CPU time of its simulations over the time by the clock times the cores.

The runs take about half a second, a hundredth of what `kant sweep` is for, so what each costs beside its simulation
weighs a hundred times as much here. The rival has no pool: a process for each core simulates its part of the same runs
in a loop. It is measured in turn with ours, since others may use the cores as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing import get_context

from benchmarks.measure import Figure
from kant.experiments.design import Drawn, Experiment, PlannedRun
from kant.experiments.pool import RunObserver, cores, run_all, simulate
from kant.scheduler.profile import builtin_profile
from kant.workload.cluster_file import read_cluster

RUNS_A_CORE, ROUNDS = 8, 2
LONG_S = 60.0
"""A run as they are: a minute."""


def measure() -> Iterator[Figure]:
    experiment = Experiment(
        name="busy",
        profiles={"random": builtin_profile("random")},
        clusters={"8x8": read_cluster("8x8")},
        sources={"seren": Drawn("seren", "seren", {"days": 14, "gpus": 64, "load": 1.0})},
        seeds=tuple(range(RUNS_A_CORE * cores())),
    )
    work(experiment, experiment.runs[:1])  # loads the kernels
    ways: dict[str, Callable[[], float]] = {
        "loop": lambda: loops(experiment),
        "sweep-busy": lambda: pool(experiment),
    }
    if find_spec("ray") is not None:
        ways["sweep-busy-ray"] = lambda: ray_cluster(experiment)
    shares: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            shares[name] = max(shares.get(name, 0.0), way())
    each = work(experiment, experiment.runs[:4]) / 4
    for name in list(ways)[1:]:
        lost = each * max(shares["loop"] / shares[name] - 1, 0.0)
        yield Figure(
            name, 100 * shares[name], "% of all cores", shares[name] / shares["loop"], "a loop for each core",
            f"{1000 * lost:.0f} ms of a core beside each run of {each:.1f} s (its start, the last runs); of runs of a "
            f"minute {100 * LONG_S / (LONG_S + lost):.1f} % are simulation",
        )  # fmt: skip


def work(experiment: Experiment, runs: Sequence[PlannedRun]) -> float:
    """Simulate runs one after the other; their CPU seconds."""
    done = [simulate(experiment, run, lambda part: None, lambda: False) for run in runs]
    return sum(summary["cpu_s"] for summary in done if summary is not None)


def share(cpu_s: float, began: float) -> float:
    return cpu_s / ((time.monotonic() - began) * cores())


def pool(experiment: Experiment) -> float:
    """The share of all cores that simulates, in `kant sweep`."""
    began = time.monotonic()
    ended = list(run_all(experiment, experiment.runs, None, lambda: False, RunObserver()))
    return share(sum(each.summary["cpu_s"] for each in ended if each.summary is not None), began)


def ray_cluster(experiment: Experiment) -> float:
    """The same on a Ray cluster of as many cores. Its workers have been started before, by one run each."""
    from kant.experiments import ray_cluster as cluster

    with cluster.connected("local") as ray:
        list(cluster.run_on_ray(ray, experiment, experiment.runs[: 2 * cores()], None, lambda: False, RunObserver()))
        began = time.monotonic()
        ended = list(cluster.run_on_ray(ray, experiment, experiment.runs, None, lambda: False, RunObserver()))
        return share(sum(each.summary["cpu_s"] for each in ended if each.summary is not None), began)


def loops(experiment: Experiment) -> float:
    """The rival: a process for each core, and nothing between them."""
    forks = get_context("fork")
    began, count = time.monotonic(), cores()
    with forks.Pool(count) as processes:
        parts = [(experiment, experiment.runs[i::count]) for i in range(count)]
        return share(sum(processes.starmap(work, parts, chunksize=1)), began)
