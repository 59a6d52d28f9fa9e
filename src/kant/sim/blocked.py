"""Blocked jobs in compiled instants: what they may use of their quotas, and which jobs of lower priority they hold.

The rules are those of `queueing/claims.py`, `holders.py` and `evictable.py`, which the plan calls as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import (
    first_short,
    weigh,
    would_borrow,
)
from kant.compiled import compiled, merged
from kant.model.units import FOREVER
from kant.placement.group_kernel import G_DEMAND
from kant.queueing import evictable as e
from kant.queueing import waiting as w
from kant.queueing.claims import may_evict_later
from kant.queueing.holders import CAPACITY, QUOTA, make_holder_of, takes_pod
from kant.sim import tables as t
from kant.sim.ends import ENDS, JOB
from kant.sim.tables import Tables

# Columns of a shape.
S_FIRST, S_GROUPS, S_MILLI, S_PODS, S_POOL_BITS, S_ALONE, S_PREEMPTS, S_COUNTED = range(8)
"""S_FIRST, S_GROUPS: the first row and the number of its groups in the table of groups. S_MILLI, S_PODS: its request.
S_POOL_BITS: its pools. S_ALONE: 1 if Python decides once such a job waits (compiled code starts such a job only if no
job waits and no key is known not to start). S_PREEMPTS: 1 if it may preempt. S_COUNTED: the row of its domains if
counts tell whether it fits (`Placer.counted_domains`), otherwise -1.
"""
SHAPE_WIDTH = 8

# Columns of a queue, by its number in the state.
HOME_SLOT, HOME_MIN_RUN = range(2)  # its first slot in the quota tree (-1: no tree); the run time it guarantees, µs
HOME_WIDTH = 2


class Quotas(NamedTuple):
    """The quotas in columns: limits and usage by slot, queues, and the request of each shape, by key."""

    limits: Table
    used: Table
    homes: Table
    amounts: Table


class Rights(NamedTuple):
    """What a job that does not fit may do, and its effect on others.

    With `evicts` some jobs evict others: jobs of lower priority (`by_priority`), or jobs that borrow quota
    (`reclaims`). Their victims have run for `min_run` µs, and hold at most `most` times the GPUs that they request;
    among up to `exact` candidates the search is exact. `keeps`: a job holds jobs of lower priority for `hold` µs, and
    those that cannot be preempted at once for `hold_fixed` µs. `sees`: see `PendingQueue.sees`.
    `kinds`: one empty node of each kind. `heads` has room for the first jobs of the buckets.
    """

    evicts: bool
    by_priority: bool
    reclaims: bool
    min_run: int
    most: float
    exact: int
    keeps: bool
    hold: int
    hold_fixed: int
    sees: int
    kinds: Table
    heads: Table


@merged
def lacks(v: Tables, one: int, its: int) -> int:
    quotas, home = v.quotas, v.quotas.homes[v.jobs[one, c.J_QUEUE], HOME_SLOT]
    return QUOTA if first_short(quotas.limits, quotas.used, home, quotas.amounts[its]) >= 0 else CAPACITY


@merged
def is_near(v: Tables, one: int, its: int, row: int, s: int) -> bool:
    return bool(v.shapes[its, S_POOL_BITS] & v.shapes[s, S_POOL_BITS] != 0)


@merged
def has_more_right(v: Tables, one: int, its: int, row: int, s: int) -> bool:
    quotas, queue, other = v.quotas, v.jobs[row, c.J_QUEUE], v.jobs[one, c.J_QUEUE]
    limits, used = quotas.limits, quotas.used
    return bool(
        v.rights.reclaims
        and would_borrow(limits, used, quotas.homes[other, HOME_SLOT], quotas.amounts[its])
        and not would_borrow(limits, used, quotas.homes[queue, HOME_SLOT], quotas.amounts[s])
    )


find_holder = make_holder_of(lacks, is_near, has_more_right, merged)


@compiled
def holder_of(v: Tables, row: int, count: int) -> tuple[int, int, int, bool]:
    """Return which of the first `count` of `rights.heads` hold a job (`make_holder_of`), and mark these."""
    rights, min_run = v.rights, v.quotas.homes[v.jobs[row, c.J_QUEUE], HOME_MIN_RUN]
    return find_holder(
        v, rights.heads[:, 1:], count, v.jobs, row, v.jobs[row, c.J_SHAPE], v.instant[t.TIME], rights.hold,
        rights.hold_fixed, min_run,
    )  # fmt: skip


@merged
def may_be_beside(v: Tables, row: int, count: int) -> bool:
    """Return whether some kind of node could hold a pod of a job, but no pod of its holders (`holder_of`)."""
    rights, s = v.rights, v.jobs[row, c.J_SHAPE]
    for node in range(rights.kinds.shape[0]):
        useful = takes_any(v, node, s)
        for i in range(count if useful else 0):
            useful = useful and not (rights.heads[i, 4] == 1 and takes_any(v, node, rights.heads[i, 2]))
        if useful:
            return True
    return False


@compiled
def running_jobs(jobs: Table, heap: Table, ends: Table) -> Table:
    """Return the rows of the running jobs."""
    found, count = np.empty(heap[0, ENDS], dtype=np.int64), 0
    for k in range(1, heap[0, ENDS] + 1):
        row = heap[k, JOB]
        if ends[row] == heap[k, ENDS] and jobs[row, c.J_PIECES] > 0:
            found[count] = row
            count += 1
            jobs[row, c.J_PIECES] = -jobs[row, c.J_PIECES]  # marks the row: the heap may contain it twice
    for i in range(count):
        jobs[found[i], c.J_PIECES] = -jobs[found[i], c.J_PIECES]
    return found[:count]


@compiled
def running_of(v: Tables) -> e.Running:
    """Return the running jobs in the order in which they started. The table is written once an instant."""
    running, quotas, jobs = v.running, v.quotas, v.jobs
    if v.instant[t.RUNNING] < 0:
        rows = running_jobs(jobs, v.heap, v.ends)
        rows = rows[np.argsort(jobs[rows, c.J_PIECE])]  # their pieces are laid out in this order
        table = e.running_table(rows, jobs, v.shapes[:, S_POOL_BITS].copy(), quotas.homes, v.rights.min_run)
        count = v.instant[t.RUNNING] = rows.shape[0]
        for i in range(count):
            c.copy_row(table, i, running.table, i)
            c.copy_row(quotas.amounts, jobs[rows[i], c.J_SHAPE], running.held, i)
        first, borrows = quotas.homes[jobs[rows, c.J_QUEUE], HOME_SLOT], running.borrows[:count]
        borrows[:] = False
        weigh(running.held[:count], first, np.ones(count, dtype=np.bool_), running.parts, borrows)
    count = v.instant[t.RUNNING]
    return e.Running(
        running.table[:count], running.held[:count], running.borrows[:count], quotas.limits, quotas.used, running.parts,
        running.entitled,
    )  # fmt: skip


@merged
def awaits_start(v: Tables) -> int:
    """Return when (µs) a waiting job may evict a job that starts in this instant; -1: never. See `await_starts`."""
    rights, quotas, jobs, shapes, started = v.rights, v.quotas, v.jobs, v.shapes, v.instant[t.STARTED_LEAST]
    lowest = v.stands[t.LOWEST] if rights.by_priority or rights.keeps else FOREVER
    count = w.best_first(
        v.entries, v.buckets, v.verdicts, v.stirred, rights.heads, False, int(np.int64(0)), FOREVER
    )  # fmt: skip
    for i in range(count):
        row, s = rights.heads[i, 1], rights.heads[i, 2]
        home, amounts = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT], quotas.amounts[s]
        if shapes[s, S_PREEMPTS] == 1 and may_evict_later(
            jobs[row, c.J_PRIORITY], lowest, started, rights.reclaims, quotas.limits, quotas.used, home, amounts
        ):
            return int(v.instant[t.TIME] + max(1, rights.min_run))
    return -1


@compiled
def takes_any(v: Tables, node: int, s: int) -> bool:
    """Return whether a kind of node could hold a pod of a shape."""
    for g in range(v.shapes[s, S_FIRST], v.shapes[s, S_FIRST] + v.shapes[s, S_GROUPS]):
        if takes_pod(v.rights.kinds, node, v.demands, v.groups[g, G_DEMAND]):
            return True
    return False
