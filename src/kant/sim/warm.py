"""Warm-up: the Numba functions of a profile are compiled, or loaded, before a run is measured."""

from __future__ import annotations

import numpy as np

from kant.compiled import compiling_ahead
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, SECOND
from kant.scheduler.profile import Profile
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.workload.workload import make_workload


@compiling_ahead()
def warm_up(profile: Profile) -> None:
    """Run a handful of jobs, so that later runs include no compilation. Has no other effect.

    The second of two runs has jobs of one priority only: unless jobs are evicted, `advance` has separate code for it.
    """
    options = read_options(profile.simulation, f"profile {profile.name}")
    cluster = ClusterSpec("warm-up", tuple(Node(f"n{i}", 8, leaf=f"l{i}") for i in range(2)))
    gpus = np.array([4, 16, 8, 12, 4, 4, 4, 12, *[1] * 16, 16], dtype=np.int64)
    urgent = np.array([0, 0, 0, 0, 0, 0, 1, 1, *[0] * 16, 1], dtype=np.int64)  # some preempt one job of few or many
    seconds = np.array([*range(8), *[10_000] * 16, 20_000], dtype=np.int64) * SECOND
    runtimes = np.array([*range(701, 0, -100), *[90_000] * 16, 1], dtype=np.int64) * SECOND
    gangs = Gangs(cluster, options.shape == "gpu")
    for priority in (urgent, 0 * urgent):
        workload = make_workload("warm-up", seconds, runtimes, gpus, priority=priority)
        run = Run(workload.name, cluster, profile, options, 0, FOREVER, RunHooks())
        run.typical(typical_pods(workload, gangs, options.typical_share, run.state.shapes.pools_admitting))
        run.result(Arrivals(workload, gangs, options), len(workload))
