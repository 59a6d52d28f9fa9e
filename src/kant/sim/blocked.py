"""Blocked jobs in compiled instants: what they may take of their quotas, and which jobs of lower priority they hold.

The rules are those of `queueing/claims.py`, which `queueing/priority.py` calls as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import (
    Q_PART,
    Q_QUOTA,
    all_borrow,
    charge_all,
    first_short,
    refund_all,
    weigh,
    would_borrow,
)
from kant.compiled import compiled
from kant.model.units import FOREVER
from kant.placement.group_kernel import G_DEMAND
from kant.queueing.claims import CAPACITY, NOTHING, QUOTA, competes, takes_pod
from kant.sim.ends import ENDS, JOB

# Columns of a shape.
S_FIRST, S_GROUPS, S_MILLI, S_PODS, S_POOL_BITS, S_ALONE, S_PREEMPTS = range(7)
"""Of a shape: its groups in the table of groups; its request; its pools as bits; 1 where Python decides whether one of
its jobs waits (such jobs start here only where no job waits and no key is known); and 1 where it may preempt."""
SHAPE_WIDTH = 7

# Columns of a queue, by its number in the state.
HOME_SLOT, HOME_MIN_RUN = range(2)  # its first slot in the quota tree (-1: no tree); the run time it guarantees, µs
HOME_WIDTH = 2


class Quotas(NamedTuple):
    """The quotas in columns: limits and usage by slot, queues, what a job of each shape asks for, by key; and the
    preemptible running jobs by priority (`cluster/preemptible.py`).
    """

    limits: Table
    used: Table
    homes: Table
    amounts: Table
    counts: Table


class Rights(NamedTuple):
    """What a job may do that does not fit, and what it does to others.

    With `evicts` some evict others: jobs of lower priority (`by_priority`), or jobs that borrow quota (`reclaims`).
    Their victims have run for `min_run` µs, and hold at most `most` times what they ask for; among up to `exact`
    candidates the search is exact. `keeps`: a job holds jobs of lower priority for `hold` µs, those that are not taken
    back at once for `hold_fixed` µs. `wakes_on`: what wakes its key. `kinds`: one empty node of each kind. `heads` has
    room for the first jobs of the buckets.
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
    wakes_on: int
    kinds: Table
    heads: Table


@compiled
def holder_of(
    now: int, row: int, count: int, rights: Rights, quotas: Quotas, jobs: Table, shapes: Table, groups: Table,
    demands: Table,
) -> tuple[int, int, int, bool]:  # fmt: skip
    """Return the best of the blocked jobs that hold a job, until when it does, and until when the first of them all
    does, µs; -1, -1 and FOREVER for none. Also whether the job may have a place on nodes that none of them can use.

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
def running_jobs(jobs: Table, heap: Table, ends: Table, in_order: bool) -> Table:
    """Return the rows of the running jobs; `in_order`: in the order in which they started."""
    found, count = np.empty(heap[0, ENDS], dtype=np.int64), 0
    for k in range(1, heap[0, ENDS] + 1):
        row = heap[k, JOB]
        if ends[row] == heap[k, ENDS] and jobs[row, c.J_PIECES] > 0:
            found[count] = row
            count += 1
            jobs[row, c.J_PIECES] = -jobs[row, c.J_PIECES]  # the heap may have it twice
    places = np.empty(count, dtype=np.int64)
    for i in range(count):
        jobs[found[i], c.J_PIECES] = -jobs[found[i], c.J_PIECES]
        places[i] = jobs[found[i], c.J_PIECE]  # pieces are laid out as jobs start
    return found[:count][np.argsort(places)] if in_order else found[:count]


@compiled
def borrowing_of(running: Table, quotas: Quotas, jobs: Table) -> NDArray[np.bool_]:
    """Return which running jobs borrow, by key."""
    held = quotas.amounts[jobs[running, c.J_SHAPE]]
    borrows = np.zeros(held.shape, dtype=np.bool_)
    parts, first = quotas.limits[:, Q_PART].copy(), quotas.homes[jobs[running, c.J_QUEUE], HOME_SLOT]
    weigh(held, first, np.ones(running.shape[0], dtype=np.bool_), parts, borrows)
    return borrows


NONE_PROVEN, NONE_FOUND, MAY_BE = range(3)
"""Whether a job finds victims: surely not, not by a search that is not exact, or perhaps."""


@compiled
def finds_victims(
    now: int, row: int, running: Table, borrows: NDArray[np.bool_], rights: Rights, quotas: Quotas, jobs: Table,
    shapes: Table,
) -> tuple[int, int]:  # fmt: skip
    """Return whether an eviction may let a job start, and when time alone may change that, µs; -1: never.

    None may where it may evict nobody, or where it lacks quota even without all that it may evict. That is what
    `Preemption.free_capacity` finds then; where it would have to look further the result is MAY_BE.
    """
    job, s = jobs[row], jobs[row, c.J_SHAPE]
    limits, used, wanted = quotas.limits, quotas.used, quotas.amounts[s]
    own, cap, asks = quotas.homes[job[c.J_QUEUE], HOME_SLOT], int(rights.most * shapes[s, S_MILLI]), False
    for key in range(wanted.shape[0]):
        asks = asks or wanted[key] > 0
    lower, leave = np.zeros(running.shape[0], dtype=np.int64), np.zeros(running.shape[0], dtype=np.bool_)
    for i in range(running.shape[0]):  # 1: it is of lower priority; 2: it also passed the job
        other = jobs[running[i]]
        if other[c.J_PREEMPTIBLE] == 1 and other[c.J_PRIORITY] < job[c.J_PRIORITY]:
            free = quotas.homes[other[c.J_QUEUE], HOME_MIN_RUN] == 0
            lower[i] = 2 if rights.keeps and free and other[c.J_STARTED] > job[c.J_SINCE] else rights.by_priority
            leave[i] = lower[i] > 0 and other[c.J_QUEUE] == job[c.J_QUEUE]
    in_quota = asks and own >= 0 and not would_borrow(limits, used, own, wanted)
    if asks and own >= 0 and not in_quota:  # it may be, without the jobs of its queue that it may evict
        charge_running(running, leave, quotas, jobs, False)
        in_quota = not would_borrow(limits, used, own, wanted)
        charge_running(running, leave, quotas, jobs, True)
    entitled, found, milli, until = limits[:, Q_QUOTA].copy(), 0, 0, FOREVER
    for i in range(running.shape[0]):
        other, leave[i] = jobs[running[i]], False
        holds, wants = False, False
        for key in range(wanted.shape[0]):
            holds = holds or quotas.amounts[other[c.J_SHAPE], key] > 0
            wants = wants or (borrows[i, key] and wanted[key] > 0)
        may = lower[i] > 0
        if other[c.J_QUEUE] == job[c.J_QUEUE]:
            may = may and (in_quota or not holds or borrows[i].any())
        elif holds:
            reclaims = rights.reclaims and in_quota and wants and other[c.J_PREEMPTIBLE] == 1
            may = (may and borrows[i].any()) or reclaims
            home = quotas.homes[other[c.J_QUEUE], HOME_SLOT]
            may = may and (not asks or all_borrow(limits, used, entitled, home, own, wanted))
        if may:
            milli += 0 if lower[i] == 2 else other[c.J_MILLI]
            least = other[c.J_STARTED] + max(rights.min_run, quotas.homes[other[c.J_QUEUE], HOME_MIN_RUN])
            if lower[i] < 2 and least > now:
                until = min(until, least)
            else:
                found += 1
                leave[i] = lower[i] == 2 or other[c.J_MILLI] <= cap
    exactly = not in_quota  # then there is one level, and these are its candidates
    if until < FOREVER and (not exactly or milli > cap or own < 0):
        return MAY_BE, -1
    if found > 0:
        if first_short(limits, used, own, wanted) < 0 or (found > rights.exact and not exactly):
            return MAY_BE, -1
        charge_running(running, leave, quotas, jobs, False)
        short = first_short(limits, used, own, wanted)
        charge_running(running, leave, quotas, jobs, True)
        if short < 0:
            return MAY_BE, -1
    return NONE_PROVEN if found <= rights.exact else NONE_FOUND, until if until < FOREVER else -1


@compiled
def charge_running(running: Table, which: NDArray[np.bool_], quotas: Quotas, jobs: Table, charges: bool) -> None:
    """Refund those of the running jobs that `which` marks, or charge them again."""
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
