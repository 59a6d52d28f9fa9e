"""Blocked jobs in compiled instants: what they may use of their quotas, and which jobs of lower priority they hold.

The rules are those of `queueing/claims.py` and `queueing/evictable.py`, which the plan calls as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import (
    Q_PART,
    charge_all,
    first_short,
    refund_all,
    weigh,
    would_borrow,
)
from kant.compiled import compiled, merged
from kant.model.units import FOREVER
from kant.placement.group_kernel import G_DEMAND
from kant.queueing import evictable as e
from kant.queueing import waiting as w
from kant.queueing.claims import CAPACITY, NOTHING, QUOTA, competes, may_evict_later, takes_pod
from kant.sim import tables as t
from kant.sim.ends import ENDS, JOB
from kant.sim.tables import Tables

# Columns of a shape.
S_FIRST, S_GROUPS, S_MILLI, S_PODS, S_POOL_BITS, S_ALONE, S_PREEMPTS, S_COUNTED = range(8)
"""Of a shape. S_FIRST, S_GROUPS: its groups in the table of groups. S_MILLI, S_PODS: its request. S_POOL_BITS: its
pools. S_ALONE: 1 if Python decides whether one of its jobs waits (such jobs start here only if no job waits and no key
is known). S_PREEMPTS: 1 if it may preempt. S_COUNTED: the row of its domains if a count tells whether it fits
(`Placer.counted_domains`), otherwise -1.
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
    (`reclaims`). Their victims have run for `min_run` µs, and hold at most `most` times what they ask for; among up to
    `exact` candidates the search is exact. `keeps`: a job holds jobs of lower priority for `hold` µs, and those that
    cannot be preempted at once for `hold_fixed` µs. `sees`: what wakes its key (`PendingQueue.sees`). `kinds`:
    one empty node of each kind. `heads` has room for the first jobs of the buckets.
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


@compiled
def holder_of(
    now: int, row: int, count: int, rights: Rights, quotas: Quotas, jobs: Table, shapes: Table, groups: Table,
    demands: Table,
) -> tuple[int, int, int, bool]:  # fmt: skip
    """Return the best of the blocked jobs that hold a job, until when it holds it, and until when the first of all of
    them does, µs; -1, -1 and FOREVER if none does. Also returns whether the job may have a place on nodes that none of
    them can use.

    The blocked jobs are the first `count` rows of `rights.heads`, best first.
    """
    holder, until, soonest, beside = -1, -1, FOREVER, True
    s, queue = jobs[row, c.J_SHAPE], jobs[row, c.J_QUEUE]
    own, hold = quotas.homes[queue, HOME_SLOT], rights.hold_fixed
    if jobs[row, c.J_PREEMPTIBLE] == 1 and quotas.homes[queue, HOME_MIN_RUN] == 0:
        hold = rights.hold
    for i in range(count):
        one = rights.heads[i, 1]
        if jobs[one, c.J_PRIORITY] <= jobs[row, c.J_PRIORITY]:
            break
        rights.heads[i, 4] = 0
        end, t, home = jobs[one, c.J_SINCE] + hold, jobs[one, c.J_SHAPE], quotas.homes[jobs[one, c.J_QUEUE], HOME_SLOT]
        if end <= now:
            continue
        near, same = shapes[t, S_POOL_BITS] & shapes[s, S_POOL_BITS] != 0, jobs[one, c.J_QUEUE] == queue
        lacks = QUOTA if first_short(quotas.limits, quotas.used, home, quotas.amounts[t]) >= 0 else CAPACITY
        more = (
            rights.reclaims and not same and would_borrow(quotas.limits, quotas.used, home, quotas.amounts[t])
            and not would_borrow(quotas.limits, quotas.used, own, quotas.amounts[s])
        )  # fmt: skip
        found = competes(lacks, near, same, False, more)
        if found == NOTHING:
            continue
        rights.heads[i, 4] = 1
        if holder < 0:
            holder, until = one, end
        soonest, beside = min(soonest, end), beside and found == CAPACITY
    if holder >= 0 and beside:
        beside = False
        for node in range(rights.kinds.shape[0]):
            useful = takes_any(rights.kinds, node, s, shapes, groups, demands)
            for i in range(count if useful else 0):
                if jobs[rights.heads[i, 1], c.J_PRIORITY] <= jobs[row, c.J_PRIORITY]:
                    break
                t = jobs[rights.heads[i, 1], c.J_SHAPE]
                if rights.heads[i, 4] == 1 and takes_any(rights.kinds, node, t, shapes, groups, demands):
                    useful = False
                    break
            beside = beside or useful
    return int(holder), int(until), int(soonest), bool(beside)


@compiled
def running_jobs(jobs: Table, heap: Table, ends: Table) -> Table:
    """Return the rows of the running jobs."""
    found, count = np.empty(heap[0, ENDS], dtype=np.int64), 0
    for k in range(1, heap[0, ENDS] + 1):
        row = heap[k, JOB]
        if ends[row] == heap[k, ENDS] and jobs[row, c.J_PIECES] > 0:
            found[count] = row
            count += 1
            jobs[row, c.J_PIECES] = -jobs[row, c.J_PIECES]  # the heap may contain it twice
    for i in range(count):
        jobs[found[i], c.J_PIECES] = -jobs[found[i], c.J_PIECES]
    return found[:count]


@compiled
def in_order_of_start(rows: Table, jobs: Table) -> Table:
    """Return the rows of running jobs in the order in which they started, in which their pieces are laid out."""
    places = np.empty(rows.shape[0], dtype=np.int64)
    for i in range(rows.shape[0]):
        places[i] = jobs[rows[i], c.J_PIECE]
    return rows[np.argsort(places)]


@compiled
def borrowing_of(running: Table, quotas: Quotas, jobs: Table) -> NDArray[np.bool_]:
    """Return which running jobs borrow, by key."""
    held = quotas.amounts[jobs[running, c.J_SHAPE]]
    borrows = np.zeros(held.shape, dtype=np.bool_)
    parts, first = quotas.limits[:, Q_PART].copy(), quotas.homes[jobs[running, c.J_QUEUE], HOME_SLOT]
    weigh(held, first, np.ones(running.shape[0], dtype=np.bool_), parts, borrows)
    return borrows


@compiled
def fill_running(
    running: e.Running, heap: Table, ends: Table, rights: Rights, quotas: Quotas, jobs: Table, shapes: Table
) -> int:  # fmt: skip
    """Write the running jobs into the first rows of `running`, in the order in which they started; return how many."""
    rows = in_order_of_start(running_jobs(jobs, heap, ends), jobs)
    table = e.running_table(rows, jobs, shapes[:, S_POOL_BITS].copy(), quotas.homes, rights.min_run)
    borrows = borrowing_of(rows, quotas, jobs)
    for i in range(rows.shape[0]):
        c.copy_row(table, i, running.table, i)
        c.copy_row(quotas.amounts, jobs[rows[i], c.J_SHAPE], running.held, i)
        for key in range(borrows.shape[1]):
            running.borrows[i, key] = borrows[i, key]
    return int(rows.shape[0])


@merged
def awaits_start(v: Tables) -> int:
    """Return when a waiting job may evict one that this instant starts, µs; -1: none may. See `await_starts`."""
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
def charge_running(running: Table, which: NDArray[np.bool_], quotas: Quotas, jobs: Table, charges: bool) -> None:
    """Refund the running jobs that `which` marks, or charge them again."""
    for i in range(running.shape[0]):
        if which[i]:
            other = jobs[running[i]]
            home, amounts = quotas.homes[other[c.J_QUEUE], HOME_SLOT], quotas.amounts[other[c.J_SHAPE]]
            if charges:
                charge_all(quotas.limits, quotas.used, home, amounts)
            else:
                refund_all(quotas.limits, quotas.used, home, amounts)


@compiled
def takes_any(kinds: Table, node: int, s: int, shapes: Table, groups: Table, demands: Table) -> bool:
    """Return whether a kind of node could hold a pod of a shape."""
    for g in range(shapes[s, S_FIRST], shapes[s, S_FIRST] + shapes[s, S_GROUPS]):
        if takes_pod(kinds, node, demands, groups[g, G_DEMAND]):
            return True
    return False
