"""What a blocked job claims: whether it may evict any job, which jobs are behind it, and which it holds back.

Python and kernels call these. The rules of priority are in `queueing/priority.py` and design note 51.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import would_borrow
from kant.compiled import compiled, inlined
from kant.model.status import NodeStatus
from kant.model.units import FOREVER

IN_SERVICE = int(NodeStatus.IN_SERVICE)

NOTHING, CAPACITY, QUOTA, QUOTA_OF_USER = range(4)
"""What a blocked job lacks, or competes for. NOTHING: its queue starts no jobs."""


@inlined
def ranks_after(jobs: Table, head: int, other: int) -> bool:
    """Return whether a job is behind a head by priority and submission."""
    own, job = jobs[head], jobs[other]
    later = job[c.J_SUBMIT] > own[c.J_SUBMIT] or (job[c.J_SUBMIT] == own[c.J_SUBMIT] and other > head)
    return bool(job[c.J_PRIORITY] < own[c.J_PRIORITY] or (job[c.J_PRIORITY] == own[c.J_PRIORITY] and later))


@inlined
def is_behind(jobs: Table, head: int, other: int) -> bool:
    """Return whether a running job started while a head waited, and is behind it by priority and submission."""
    return bool(jobs[other, c.J_STARTED] >= jobs[head, c.J_SINCE] and ranks_after(jobs, head, other))


@inlined
def may_evict(
    priority: int, lowest: int, reclaims: bool, limits: Table, used: Table, first: int, amounts: Table, beyond: bool
) -> bool:
    """Return whether counts allow that a waiting job evicts a running one, without a look at single jobs.

    `lowest` is the lowest priority of the preemptible jobs, FOREVER if priority gives no right to evict. `beyond`: a
    queue holds more than its nominal quota, so a job in its own nominal quota may reclaim from it.
    """
    return bool(priority > lowest or (reclaims and beyond and not would_borrow(limits, used, first, amounts)))


@inlined
def may_evict_later(
    priority: int, lowest: int, started: int, reclaims: bool, limits: Table, used: Table, first: int, amounts: Table
) -> bool:
    """Return whether counts allow that a waiting job evicts a job that the plan starts, once that job runs.

    `started` is the lowest priority of the preemptible jobs that the plan starts, FOREVER if there is none. A job that
    reclaims may be in quota once jobs of lower priority have left: `lowest` is the lowest priority of the running ones.
    """
    lowest = min(lowest, started) if reclaims else started
    return bool(started < FOREVER and may_evict(priority, lowest, reclaims, limits, used, first, amounts, True))


@inlined
def competes(lacks: int, near: bool, same_queue: bool, same_user: bool, has_more_right: bool) -> int:
    """Return what a job takes that a blocked one lacks: CAPACITY, QUOTA, or NOTHING.

    `near`: both may use the same nodes. `has_more_right`: it is in quota, and the blocked job of another queue would
    borrow. If the blocked job ran, this one could reclaim its place. A blocked job that lacks quota competes with the
    other jobs of its queue, or of its user there.
    """
    if lacks == CAPACITY:
        return CAPACITY if near and not has_more_right else NOTHING
    same = same_queue and (lacks == QUOTA or (lacks == QUOTA_OF_USER and same_user))
    return QUOTA if same else NOTHING


@inlined
def takes_pod(empty: Table, node: int, demands: Table, d: int) -> bool:
    """Return whether a node could hold a pod of demand `d` if nothing ran on it."""
    asked = demands[d]
    return bool(
        empty[node, c.STATUS] == IN_SERVICE
        and c.admits(demands, d, empty[node, c.POOL], node)
        and empty[node, c.GPUS] >= asked[c.D_GPUS]
        and empty[node, c.CPU_FREE] >= asked[c.D_CPU]
        and empty[node, c.MEMORY_FREE] >= asked[c.D_MEMORY]
    )


@compiled
def take_pods(empty: Table, demands: Table, d: int, takes: NDArray[np.bool_]) -> None:
    """Write the result of `takes_pod` for every node into `takes`."""
    for node in range(empty.shape[0]):
        takes[node] = takes_pod(empty, node, demands, d)
