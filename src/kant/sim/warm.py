"""Warm-up: the compiled kernels of a profile are compiled, or loaded, before a run is measured."""

from __future__ import annotations

import numpy as np

from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, SECOND
from kant.scheduler.profile import Profile
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.workload.workload import make_workload


def warm_up(profile: Profile) -> None:
    """Run a handful of jobs, so that later runs include no compilation. Has no other effect."""
    options = read_options(profile.simulation, f"profile {profile.name}")
    cluster = ClusterSpec("warm-up", tuple(Node(f"n{i}", 2, leaf=f"l{i}") for i in range(2)))
    gpus = np.array([1, 4, 2, 3, 1, 1, 1, 3], dtype=np.int64)
    urgent = np.array([0, 0, 0, 0, 0, 0, 1, 1], dtype=np.int64)  # some have to preempt others
    seconds = np.arange(len(gpus), dtype=np.int64) * SECOND
    workload = make_workload("warm-up", seconds, np.flip(seconds) * 100 + SECOND, gpus, priority=urgent)
    gangs = Gangs(cluster, options.shape == "gpu")
    run = Run(workload.name, cluster, profile, options, 0, FOREVER, RunHooks())
    run.typical(typical_pods(workload, gangs, options.typical_share, run.state.shapes.pools_admitting))
    run.result(Arrivals(workload, gangs, options), len(workload))
