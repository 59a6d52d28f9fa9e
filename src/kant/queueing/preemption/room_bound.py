"""A bound on the room that backfilled jobs give a late head, from the GPUs on each node alone, in one compiled call.

Most late heads of queues that would borrow have a right to few of the jobs behind them. That these do not suffice is
mostly plain from the GPUs of the nodes, and then no placement is tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.compiled import compiled
from kant.model.placement import MASK, MILLI, NODE

ROW, QUEUE, PRIORITY, SUBMIT, STARTED, BORROWS = range(6)


class PreemptibleRoom:
    """What jobs that may be preempted hold on the nodes, as they are when it is made.

    `rows` are preemptible jobs past their minimum run time; `borrowing` is 1 for those that borrow.
    """

    def __init__(self, state: ClusterState, rows: Table, borrowing: Table) -> None:
        jobs = state.jobs.take(rows, axis=0)
        order = (jobs[:, c.J_QUEUE], jobs[:, c.J_PRIORITY], jobs[:, c.J_SUBMIT], jobs[:, c.J_STARTED])
        self.jobs: Table = np.stack((rows, *order, borrowing), axis=1)
        self.pieces: Table = np.array(
            [
                (place, piece[NODE], piece[MASK].bit_count() * piece[MILLI])
                for place, row in enumerate(rows.tolist())
                for piece in state.running[row].tolist()
            ],
            dtype=np.int64,
        ).reshape(-1, 3)

    def pods(self, table: Table, row: int, head: list[int], milli: int) -> tuple[int, frozenset[int]]:
        """For how many pods of `milli` milli-GPUs each there is room on the nodes of `table`, at most, once those have
        left that are behind the head and borrow or are of its queue; and which these are.

        `head` is the head's row of the table of jobs.
        """
        own = (head[c.J_QUEUE], head[c.J_PRIORITY], head[c.J_SUBMIT], head[c.J_SINCE])
        leave = np.zeros(len(self.jobs), dtype=np.bool_)
        pods = int(pods_beside(table, self.jobs, self.pieces, row, *own, milli, leave))
        return pods, frozenset(self.jobs[leave, ROW].tolist())


@compiled
def pods_beside(
    table: Table,
    jobs: Table,
    pieces: Table,
    row: int,
    queue: int,
    priority: int,
    submit: int,
    since: int,
    milli: int,
    leave: NDArray[np.bool_],
) -> int:
    """The bound of `PreemptibleRoom.pods`. Writes into `leave` which of the jobs have left."""
    for i in range(jobs.shape[0]):
        job = jobs[i]
        later = job[SUBMIT] > submit or (job[SUBMIT] == submit and job[ROW] > row)
        behind = job[PRIORITY] < priority or (job[PRIORITY] == priority and later)
        leave[i] = behind and job[STARTED] >= since and (job[BORROWS] == 1 or job[QUEUE] == queue)
    free = table[:, c.FREE].copy()
    for i in range(pieces.shape[0]):
        if leave[pieces[i, 0]]:
            free[pieces[i, 1]] += pieces[i, 2]
    pods = 0
    for node in range(free.shape[0]):
        pods += free[node] // milli
    return pods
