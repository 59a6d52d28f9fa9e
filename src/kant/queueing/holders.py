"""Which blocked jobs keep a job of lower priority from starting; they "hold" it.

Python and compiled code call these functions. `queueing/priority.py` and design note 51 have the rules of priority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.status import NodeStatus
from kant.model.units import FOREVER

IN_SERVICE = int(NodeStatus.IN_SERVICE)

NOTHING, CAPACITY, QUOTA, QUOTA_OF_USER = range(4)
"""What a blocked job lacks. NOTHING: its queue starts no jobs."""

HolderOf = Callable[..., tuple[int, int, int, bool]]


def make_holder_of(
    lacks: Callable[[Any, int, int], int] | None, is_near: Callable[[Any, int, int, int, int], bool],
    has_more_right: Callable[[Any, int, int, int, int], bool] | None, kernel: Callable[[Any], Any],
) -> HolderOf:  # fmt: skip
    """Build the function that finds which blocked jobs hold a job of lower priority, from callbacks that take `view`.

    `lacks` returns what a blocked job (its row and shape) lacks; None: always capacity. `is_near` returns whether the
    blocked job and the job may use the same nodes. `has_more_right` returns whether the job is in quota and the blocked
    job of another queue would borrow, so that the job could reclaim its capacity; None: never.
    """

    def holder_of(
        view: Any, blocked: Table, count: int, jobs: Table, row: int, shape: int, now: int, hold: int, fixed: int,
        min_run: int,
    ) -> tuple[int, int, int, bool]:  # fmt: skip
        """Return the index of the first of the `count` blocked jobs that holds the job; until when it does (µs); the
        earliest end of any hold (µs); whether all holders lack capacity. Without holders: -1, -1, FOREVER, True.

        `blocked` has a job per row: first its row and shape; the last column is set to 1 for a holder, else to 0. A job
        holds others for the first `hold` µs of its wait if they are preemptible and `min_run` is 0, else for `fixed`
        µs. A job that lacks quota holds only jobs of its queue; if only its user lacks quota, only the user's jobs.
        """
        holder, until, soonest, by_capacity, queue = -1, -1, FOREVER, True, jobs[row, c.J_QUEUE]
        lasts = hold if jobs[row, c.J_PREEMPTIBLE] == 1 and min_run == 0 else fixed
        for i in range(count):
            one, its = blocked[i, 0], blocked[i, 1]
            end, blocked[i, 3] = jobs[one, c.J_SINCE] + lasts, 0
            if end <= now:
                continue
            same, lack = jobs[one, c.J_QUEUE] == queue, CAPACITY
            if lacks is not None:
                lack = lacks(view, one, its)
            if lack == CAPACITY:
                holds = is_near(view, one, its, row, shape)
                if has_more_right is not None and holds and not same:
                    holds = not has_more_right(view, one, its, row, shape)
            else:
                of_user = lack == QUOTA_OF_USER and jobs[one, c.J_USER] == jobs[row, c.J_USER]
                holds = same and (lack == QUOTA or of_user)
            if holds:
                blocked[i, 3] = 1
                if holder < 0:
                    holder, until = i, end
                soonest, by_capacity = min(soonest, end), by_capacity and lack == CAPACITY
        return int(holder), int(until), int(soonest), bool(by_capacity)

    return kernel(holder_of)  # type: ignore[no-any-return]


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
