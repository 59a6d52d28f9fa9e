"""Finish-time fairness: what sharing the cluster costs a queue, compared with a cluster of only its nominal quota.

After Themis (Mahajan et al., NSDI 2020), where rho of an app is its completion time in the shared cluster over that in
a cluster of its fair share. Here it is a ratio of two sums over a queue's jobs, and needs no second simulation. The
dividend sums (time waiting + time running). The divisor sums useful time running x max(1, GPUs of the job / nominal
GPUs of the queue): the time that each job would take if it had the nominal quota to itself, and ran slower in
proportion if it needs more. The divisor ignores that jobs of one queue would also wait for each other. So rho is an
upper bound of the slowdown by other queues, and is comparable between queues of equal load. Jobs that wait or run at
the end count up to that time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kant.metrics.result import JobTable
from kant.model.tenant import QueueConfig
from kant.model.units import GPU


def nominal_gpus(queue_config: QueueConfig, name: str) -> float:
    """Return the GPUs of all models in the queue's own quotas, or in those of the nearest ancestor with any; or 0."""
    queues = {queue.name: queue for queue in queue_config.queues}
    while name in queues:
        own = sum(quota.nominal for quota in queues[name].quotas if quota.resource == "gpu")
        if own > 0:
            return own / GPU
        name = queues[name].parent
    return 0.0


def rho(table: JobTable, useful: np.ndarray, busy: np.ndarray, jobs: np.ndarray, gpus: float) -> float | None:
    """Return the ratio of one queue with `gpus` (> 0) of its own over the jobs in a mask; None if none of them has run.

    `busy` is each job's run time, `useful` its run time without lost work (microseconds).
    """
    spent = float(table.wait[jobs].sum(dtype=np.float64) + busy[jobs].sum(dtype=np.float64))
    slower = np.maximum(table.gpus[jobs] / GPU / gpus, 1.0)
    alone = float((useful[jobs] * slower).sum())
    return spent / alone if alone > 0 else None


def over_queues(by_queue: dict[str, Any]) -> dict[str, float | None]:
    """Return the `worst` and the `mean` rho over the queues that have one."""
    found = [queue["rho"] for queue in by_queue.values() if queue["rho"] is not None]
    return {"worst": max(found, default=None), "mean": sum(found) / len(found) if found else None}
