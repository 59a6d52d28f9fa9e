"""`kant.simulate`: one workload, one cluster, one profile."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from kant.api.cluster import Cluster
from kant.api.profile import Profile
from kant.api.result import Result
from kant.api.workload import Workload
from kant.model.errors import InputError
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, parse_duration
from kant.sim import run
from kant.sim.checks import check_queues
from kant.workload.faults_file import read_faults
from kant.workload.tenants_file import read_tenants


def simulate(
    workload: Workload | str | PathLike[str],
    cluster: Cluster | str | PathLike[str],
    profile: Profile | str | PathLike[str] = "kant",
    *,
    seed: int = 0,
    until: str | None = None,
    queues: str | PathLike[str] | None = None,
    faults: str | PathLike[str] | None = None,
    ledger: bool = False,
) -> Result:
    """Run a workload on a cluster under a profile in simulated time, and return the result.

    Each is an object, or an argument of its `read`: a trace, `"4x8"` or a cluster file, the name or the file of a
    profile. The run ends with the last job, or at `until` (such as "30d" after the first submission). `queues` is a
    TOML file of queues and quotas, `faults` a CSV file of node faults. With `ledger` every wait is split by its causes.
    All random numbers are drawn from `seed`: equal inputs, equal digests. Raises InputError for inputs that cannot be
    used or do not fit together.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InputError("seed", "a whole number from 0 to 2^63 - 1", seed)
    jobs = workload if isinstance(workload, Workload) else Workload.read(workload)
    machines = cluster if isinstance(cluster, Cluster) else Cluster.read(cluster)
    chosen = profile if isinstance(profile, Profile) else Profile.read(profile)
    result = run.simulate(
        jobs.inner,
        machines.inner,
        chosen.inner,
        seed=seed,
        until=FOREVER if until is None else parse_duration(until, "until"),
        hooks=run.RunHooks(keep_intervals=True, ledger=ledger),
        queue_config=_queues(queues, jobs),
        faults=read_faults(Path(faults), machines.inner) if faults is not None else (),
    )
    return Result(replace(result, jobs=result.jobs.apart()), jobs, machines, chosen, seed)


def _queues(path: str | PathLike[str] | None, jobs: Workload) -> QueueConfig | None:
    if path is None:
        return None
    found = read_tenants(Path(path))
    if found.queues:
        check_queues(jobs.inner, found, fspath(path))
    return found
