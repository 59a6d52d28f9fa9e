"""Draws who submits: queues and their users, both with Zipf weights. Their names are always the same."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from kant.workload.generate.row import ClusterStatistics

Ints = NDArray[np.int64]


def zipf(count: int) -> NDArray[np.float64]:
    """Return the weights 1, 1/2, 1/3, …, scaled so that they sum to one."""
    weights = 1.0 / np.arange(1, count + 1)
    scaled: NDArray[np.float64] = weights / weights.sum()
    return scaled


def draw_tenants(rng: Generator, row: ClusterStatistics, sessions: int) -> tuple[Ints, Ints]:
    """Return the queue and the user of each session, as codes into `tenant_names`. A user belongs to one queue."""
    queue = rng.choice(row.queues, size=sessions, p=zipf(row.queues)).astype(np.int64)
    member = rng.choice(row.users_per_queue, size=sessions, p=zipf(row.users_per_queue))
    return queue, (queue * row.users_per_queue + member).astype(np.int64)


def tenant_names(row: ClusterStatistics) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the queues `vc01`, `vc02`, … by decreasing weight, and the users `vc01-u01`, … queue by queue."""
    queues = tuple(f"vc{i + 1:02d}" for i in range(row.queues))
    users = tuple(f"{queue}-u{i + 1:02d}" for queue in queues for i in range(row.users_per_queue))
    return queues, users
