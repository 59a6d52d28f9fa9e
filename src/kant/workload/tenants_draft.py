"""Drafts a file of tenants for a workload: each queue's quota is proportional to the GPU-hours of its jobs."""

from __future__ import annotations

import numpy as np

from kant.model.errors import InputError
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import GPU, HOUR
from kant.workload.cluster_toml import A_NAME, is_name
from kant.workload.workload import Workload

ROOT = "cluster"


def proportional(workload: Workload, gpus: int) -> QueueConfig:
    """Return the queues of a workload under one root, with nominal quotas whose sum is `gpus`, and without limits.

    Quotas are whole GPUs by largest remainder, at least one each if there are as many GPUs as queues. Raises InputError
    for a queue name that a file of tenants cannot contain.
    """
    codes = np.unique(workload.queue).tolist()
    for code in codes:
        if not is_name(workload.queues[code]):
            raise InputError(f"{workload.name}, queue", A_NAME, workload.queues[code])
    hours = workload.total_gpus * (workload.milli / GPU) * (workload.runtime / HOUR)
    spent = [float(hours[workload.queue == code].sum()) for code in codes]
    names = [workload.queues[code] for code in codes]
    root = ROOT
    while root in names:
        root += "-"
    quotas = apportioned(spent, gpus)
    queues = [Queue(name, parent=root, quotas=(Quota(nominal=n * GPU),)) for name, n in zip(names, quotas, strict=True)]
    return QueueConfig((Queue(root), *sorted(queues, key=lambda queue: queue.name)))


def apportioned(weights: list[float], total: int) -> list[int]:
    """Whole numbers in proportion to `weights` that sum to `total`: one each if possible, then by largest remainder."""
    count, whole = len(weights), sum(weights)
    first = 1 if total >= count else 0
    rest = total - first * count
    exact = [rest * weight / whole if whole > 0 else rest / count for weight in weights]
    given = [int(part) for part in exact]
    order = sorted(range(count), key=lambda i: (given[i] - exact[i], i))
    for i in order[: rest - sum(given)]:
        given[i] += 1
    return [first + part for part in given]
