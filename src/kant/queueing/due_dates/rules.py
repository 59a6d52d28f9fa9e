"""The classical rules, earliest due date and modified due date, and the total tardiness of a sequence."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once


@compiled_at_once
def total_tardiness(p: Table, d: Table, sequence: Table, start: int) -> int:
    """Return ΣT of the jobs of `sequence`, run without a gap from `start`; in the unit of `p` and `d`."""
    time, total = start, 0
    for job in sequence:
        time += p[job]
        total += max(time - d[job], 0)
    return total


@compiled_at_once
def sorted_by(first: Table, second: Table) -> Table:
    """Return the indices sorted by `first`, then `second`, then index."""
    inner = np.argsort(second, kind="mergesort")
    return inner[np.argsort(first[inner], kind="mergesort")]


@compiled_at_once
def edd(p: Table, d: Table, start: int) -> Table:
    """Earliest due date first: J. R. Jackson, Scheduling a production line to minimize maximum tardiness, 1955."""
    return sorted_by(d, p)


@compiled_at_once
def mdd_sequence(p: Table, d: Table, start: int) -> Table:
    """The smallest modified due date max(d, t + p) first, at the time t at which the machine is free again.

    K. R. Baker and J. W. M. Bertrand, A dynamic priority rule for scheduling against due-dates, 1982. A job is early
    while t + p <= d, and late from then on. Early jobs are sorted by due date, late ones are in a heap by length. So n
    jobs cost O(n log n).
    """
    n = p.shape[0]
    by_due, by_length = sorted_by(d, p), sorted_by(p, d)
    by_slack = sorted_by(d - p, p)
    length_rank = np.empty(n, dtype=np.int64)
    for rank in range(n):
        length_rank[by_length[rank]] = rank
    late = [int(x) for x in by_length[:0]]  # ranks by length; empty, but Numba needs its element type
    gone = np.zeros(n, dtype=np.bool_)  # late, or sequenced while early
    sequence = np.empty(n, dtype=np.int64)
    time, slack, due = start, 0, 0
    for place in range(n):
        while slack < n and d[by_slack[slack]] - p[by_slack[slack]] < time:
            job = by_slack[slack]
            if not gone[job]:
                gone[job] = True
                heappush(late, int(length_rank[job]))
            slack += 1
        while due < n and gone[by_due[due]]:
            due += 1
        # On a tie the late job has the earlier due date.
        if late and (due == n or time + p[by_length[late[0]]] <= d[by_due[due]]):
            job = by_length[heappop(late)]
        else:
            job = by_due[due]
            gone[job] = True
        sequence[place] = job
        time += p[job]
    return sequence
