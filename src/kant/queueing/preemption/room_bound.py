"""A bound on the room that backfilled jobs give a late head, from the GPUs on each node alone, in one compiled call.

Most late heads of queues that would borrow may preempt few of the jobs behind them. The GPU counts of the nodes usually
prove that these do not suffice, and then no placement is tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.compiled import compiled, inlined
from kant.model.placement import MASK, MILLI, NODE


class PreemptibleRoom:
    """What preemptible jobs hold on the nodes, as of its creation.

    `rows` are preemptible jobs past their minimum run time; `borrowing` is 1 for those that borrow.
    """

    def __init__(self, state: ClusterState, rows: Table, borrowing: Table) -> None:
        self.state, self.rows, self.borrowing = state, rows, borrowing
        self.pieces: Table = np.array(
            [
                (place, piece[NODE], piece[MASK].bit_count() * piece[MILLI])
                for place, row in enumerate(rows.tolist())
                for piece in state.running[row].tolist()
            ],
            dtype=np.int64,
        ).reshape(-1, 3)

    def pods(self, table: Table, head: int, milli: int) -> tuple[int, frozenset[int]]:
        """Return an upper bound on the pods of `milli` milli-GPUs that fit on `table` once the jobs behind the head
        that borrow or are of its queue have left; and these jobs.
        """
        leave = np.zeros(len(self.rows), dtype=np.bool_)
        pods = int(pods_beside(table, self.state.jobs, head, self.rows, self.borrowing, self.pieces, milli, leave))
        return pods, frozenset(self.rows[leave].tolist())


@inlined
def comes_after(jobs: Table, head: int, other: int) -> bool:
    """Return whether a job is behind a head by priority and submission."""
    own, job = jobs[head], jobs[other]
    later = job[c.J_SUBMIT] > own[c.J_SUBMIT] or (job[c.J_SUBMIT] == own[c.J_SUBMIT] and other > head)
    return bool(job[c.J_PRIORITY] < own[c.J_PRIORITY] or (job[c.J_PRIORITY] == own[c.J_PRIORITY] and later))


@inlined
def is_behind(jobs: Table, head: int, other: int) -> bool:
    """Return whether a running job started while a head waited, and is behind it by priority and submission."""
    return bool(jobs[other, c.J_STARTED] >= jobs[head, c.J_SINCE] and comes_after(jobs, head, other))


@compiled
def pods_beside(
    table: Table, jobs: Table, head: int, rows: Table, borrowing: Table, pieces: Table, milli: int,
    leave: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Return the bound of `PreemptibleRoom.pods`. Marks in `leave` which jobs are counted as gone."""
    for i in range(rows.shape[0]):
        own = borrowing[i] == 1 or jobs[rows[i], c.J_QUEUE] == jobs[head, c.J_QUEUE]
        leave[i] = own and is_behind(jobs, head, rows[i])
    free = table[:, c.FREE].copy()
    for i in range(pieces.shape[0]):
        if leave[pieces[i, 0]]:
            free[pieces[i, 1]] += pieces[i, 2]
    pods = 0
    for node in range(free.shape[0]):
        pods += free[node] // milli
    return pods
