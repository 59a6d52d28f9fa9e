"""Check that queues, workload and profile fit together, before anything runs."""

from __future__ import annotations

import numpy as np

from kant.model.errors import InputError
from kant.model.tenant import QueueConfig
from kant.scheduler.profile import Profile
from kant.sim.options import SimOptions
from kant.workload.workload import Workload


def check_queues(workload: Workload, queue_config: QueueConfig, where: str) -> None:
    """Raise InputError unless every queue that has jobs in `workload` is one of `queue_config`, read from `where`."""
    known = {queue.name for queue in queue_config.queues}
    for code in np.unique(workload.queue).tolist():
        if workload.queues[code] not in known:
            raise InputError(where, f"the queue {workload.queues[code]!r}, which {workload.name} uses")


def check_profile(profile: Profile, queue_config: QueueConfig | None, burst_replicas: bool = False) -> None:
    """Raise InputError for queues with quotas, or replicas, that the profile's discipline does not honour."""
    if profile.quotas:
        return
    name = profile.without_quotas
    if queue_config is not None and queue_config.queues:
        raise InputError(f"profile {profile.name}: discipline", "one that respects the quotas of queues", name)
    if burst_replicas:
        raise InputError(f"profile {profile.name}: discipline", "one that supports burst replicas", name)


def check_faults(profile: Profile, options: SimOptions, listed: bool) -> None:
    """Raise InputError if faults are `listed` and the options also draw faults, or do not support faults."""
    if not listed:
        return
    if options.mtbf_days:
        raise InputError("--faults", f"a profile that draws no faults (mtbf_days), unlike {profile.name}")
    if options.static or options.speed == "interval-overhead":
        raise InputError(
            "--faults", f"a profile without the options static and interval-overhead, unlike {profile.name}"
        )
