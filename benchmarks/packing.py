"""FGD's static packing of the openb pods on 1,213 nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks import rivals
from benchmarks.data import DATA
from benchmarks.measure import Figure, cpu_seconds
from kant.scheduler.profile import builtin_profile
from kant.sim.jobs import Gangs, typical_pods
from kant.sim.run import simulate
from kant.sim.static_packing import static_arrivals
from kant.sim.warm import warm_up
from kant.workload.cluster_file import read_cluster
from kant.workload.read import read_workload

RIVAL_PODS = 300


def measure() -> Iterator[Figure]:
    if not (DATA / "openb_pods.csv.gz").exists():
        return
    workload = read_workload(DATA / "openb_pods.csv.gz", format="openb", slice="default")
    cluster = read_cluster(str(DATA / "openb_nodes.csv.gz"))
    profile = builtin_profile("openb-fgd")
    warm_up(profile)
    ours, result = cpu_seconds(lambda: simulate(workload, cluster, profile, seed=42), 2)
    pods = result.summary["jobs"]

    mix = typical_pods(workload, Gangs(cluster, False), 0.95, lambda models, mig: -1)
    coming = static_arrivals(workload, cluster, 1.3, 42)
    rival = rivals.NumpyFgd(
        np.array([node.cpu for node in cluster.nodes]), np.array([node.gpus for node in cluster.nodes]), mix
    )
    rows = list(zip(coming.cpu.tolist(), coming.gpus.tolist(), coming.milli.tolist(), strict=True))[:RIVAL_PODS]
    theirs, _ = cpu_seconds(lambda: [rival.place(*row) for row in rows])
    yield Figure(
        "openb-fgd",
        pods / ours,
        "pods per CPU-second",
        (theirs / RIVAL_PODS) / (ours / pods),
        f"NumPy over all nodes ({RIVAL_PODS} pods)",
        "scoring the nodes that changed, once for each of the 151 kinds of pod",
    )
