"""Late heads in compiled instants: the callbacks of `queueing/late_heads.py`, which read tables.

Counts tell whether a head may take the devices of jobs that passed it, by the rules of
`queueing/preemption/backfilled.py`. If it may, the search is that of all evictions (`evict.py`). Python decides the
instant for a head that borrows quota, and where no count tells whether the head fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import first_short, refund_all, would_borrow
from kant.compiled import compiled, merged
from kant.model.units import FOREVER, GPU
from kant.placement.capacity import room_beside
from kant.placement.group_kernel import G_DEMAND, G_PODS
from kant.placement.kernels import COUNT_ALL, Kernel, named
from kant.queueing import waiting as w
from kant.queueing.claims import is_behind, ranks_after
from kant.queueing.evictable import R_ROW
from kant.queueing.late_heads import MAY_NOT, STARTS, STAYS, UNDECIDED, make_serve_heads
from kant.sim import tables as t
from kant.sim.blocked import (
    HOME_MIN_RUN,
    HOME_SLOT,
    S_FIRST,
    S_GROUPS,
    S_POOL_BITS,
    S_PREEMPTS,
    holder_of,
    running_jobs,
    running_of,
)
from kant.sim.happened import H_ROW
from kant.sim.reserve import WAITS
from kant.sim.tables import Tables
from kant.sim.tries import TakeOver


class Rules(NamedTuple):
    """The fields of `Backfill` about late heads. `pools` has the pools of each shape, as bits.

    `known` has the heads that could not be served: row, number of node changes by then, until when this holds (µs), and
    1 for a head that no backfilled job keeps from starting.
    """

    timeout_s: int
    small_timeout_s: int
    large_gpus: int
    pools: Table
    known: Table


KNOWN = 64
K_HEAD, K_CHANGES, K_UNTIL, K_DEFINITIVE = range(4)
KNOWN_WIDTH = 4

Serve = Callable[[Tables], None]


@compiled
def serve_none(v: Tables) -> None:
    """Serve no head. Schedule the next cycle for when a blocked job may start only because time has passed."""
    now, heads = v.instant[t.TIME], v.rights.heads
    if v.stands[t.RETRY] > now:
        count = w.best_first(v.entries, v.buckets, v.verdicts, v.stirred, heads, False, int(np.int64(0)), FOREVER)
        t.wake_at(v, w.wakes_first(v.entries, v.verdicts, heads[:count, 0].copy(), now))


@merged
def is_held(v: Tables, row: int, bucket: int) -> bool:
    return bool(v.buckets[bucket, w.B_HELD] == 1)


@cache
def serve_kernel(place: Kernel, limited: bool, take_over: TakeOver | None) -> Serve:
    """Return the compiled function that serves late heads, for a profile that places groups by `place`. `limited`: with
    quotas or several priorities. `take_over` starts a head on the devices of others (None: Python does).

    The function asks for another instant when a hold ends, when time alone may let a head start, when the next head is
    late, or when a late head may preempt one more job. It sets the code WAITS if Python has to decide.
    """

    @merged
    def waits(v: Tables, row: int, s: int) -> bool:
        quotas, home = v.quotas, v.quotas.homes[v.jobs[row, c.J_QUEUE], HOME_SLOT]
        return bool(first_short(quotas.limits, quotas.used, home, quotas.amounts[s]) >= 0)

    @merged
    def take_places(v: Tables, row: int, s: int, bucket: int) -> int:
        """Serve a late head. Returns STARTS, STAYS, MAY_NOT or UNDECIDED (`queueing/late_heads.py`).

        The jobs that start in this instant hold the pieces [begun, top) of `held`.
        """
        instant, changes, rules, rights = v.instant, v.log[0], v.rules, v.rights
        now, begun, top, shapes, jobs, held, demands = (
            instant[t.TIME], v.stands[t.TAKEN], instant[t.TOP], v.shapes, v.jobs, v.held, v.demands
        )  # fmt: skip
        if instant[t.OPENED] == 1 and rights.keeps:
            return UNDECIDED  # a head that starts does not hold other jobs any more
        if shapes[s, S_PREEMPTS] == 0:
            return MAY_NOT
        known = rules.known[row % KNOWN]
        steady = top == begun  # a job that starts in this instant takes quota, and may be stopped later
        if steady and known[K_HEAD] == row and known[K_CHANGES] == changes and now < known[K_UNTIL]:
            t.wake_at(v, known[K_UNTIL])
            return STAYS if known[K_DEFINITIVE] == 1 else MAY_NOT
        known[K_HEAD] = -1
        if shapes[s, S_GROUPS] > 1:
            return UNDECIDED
        group, queue = v.groups[shapes[s, S_FIRST]], jobs[row, c.J_QUEUE]
        demand = group[G_DEMAND]
        fitting = -1 - place(
            v.trial, v.trial_log, demands, group, v.typical, v.scores, v.others, v.domains, np.int64(COUNT_ALL),
            held, top,
        )  # fmt: skip
        everyone, asks, in_tree = True, False, False
        if limited:
            quotas = v.quotas
            home, amounts, used = quotas.homes[queue, HOME_SLOT], quotas.amounts[s], quotas.used.copy()
            in_tree = home >= 0
            if in_tree and rights.reclaims:
                all_running = running_of(v)
                running, by_key = all_running.table[:, R_ROW], all_running.borrows
                everyone = not would_borrow(quotas.limits, quotas.used, home, amounts)
                asks = not everyone and amounts.any()
            else:
                running = running_jobs(jobs, v.heap, v.ends)
        else:
            running = running_jobs(jobs, v.heap, v.ends)
        # By index in `running`: the job is not behind the head (0), may not stop now (1), may stop (3), or may stop if
        # the head is then in quota (2).
        kind, pieces, next_one = np.zeros(running.shape[0], dtype=np.int64), top - begun, FOREVER
        for k in range(running.shape[0]):
            other, least, borrows, same = running[k], rights.min_run, True, False
            near = rules.pools[jobs[other, c.J_SHAPE]] & shapes[s, S_POOL_BITS] != 0
            if near and jobs[other, c.J_PREEMPTIBLE] == 1 and is_behind(jobs, row, other):
                kind[k], pieces = 1, pieces + jobs[other, c.J_PIECES]
                if limited:
                    held_quota = quotas.amounts[jobs[other, c.J_SHAPE]]
                    least = max(least, quotas.homes[jobs[other, c.J_QUEUE], HOME_MIN_RUN])
                    same = asks and jobs[other, c.J_QUEUE] == queue
                    if in_tree and rights.reclaims:
                        borrows = by_key[k].any() or not held_quota.any()
                    if same and jobs[other, c.J_STARTED] + least <= now:
                        refund_all(quotas.limits, used, home, held_quota)
                if (everyone or same or borrows) and jobs[other, c.J_STARTED] + least > now:
                    next_one = min(next_one, jobs[other, c.J_STARTED] + least)
                elif everyone or same or borrows:
                    kind[k] = 3 if borrows else 2
        in_quota = everyone
        if limited:
            in_quota = everyone or (asks and not would_borrow(quotas.limits, used, home, amounts))
        # The pieces of jobs that may stop now, of the others behind the head, and of those that start now.
        freed, taken, stop = np.empty((pieces, held.shape[1]), dtype=np.int64), 0, 0
        for later in range(2):
            for k in range(running.shape[0]):
                if kind[k] > 0 and (kind[k] == 3 or (kind[k] == 2 and in_quota)) == (later == 0):
                    job = jobs[running[k]]
                    for piece in range(job[c.J_PIECE], job[c.J_PIECE] + job[c.J_PIECES]):
                        c.copy_row(held, piece, freed, taken)
                        taken += 1
            stop = taken if later == 0 else stop
        for piece in range(begun, top):
            c.copy_row(held, piece, freed, taken + piece - begun)
        definitive = fitting + room_beside(v.trial, freed, pieces, demands, demand) < group[G_PODS]
        if definitive:
            next_one = FOREVER
        elif stop > 0 and fitting + room_beside(v.trial, freed, stop, demands, demand) >= group[G_PODS]:
            if take_over is None or not everyone:
                return UNDECIDED
            passers, count = np.empty(running.shape[0], dtype=np.int64), 0
            for k in range(running.shape[0]):
                if kind[k] > 1:
                    passers[count] = running[k]
                    count += 1
            if not take_over(v, row, s, passers[:count]):
                return UNDECIDED
            for other_bucket in range(v.buckets[0, w.B_REACH] + 1 if rights.keeps else 0):
                v.buckets[other_bucket, w.B_HELD] = 0
            return STARTS
        else:
            shares = demands[demand, c.D_GPUS] > 1 and demands[demand, c.D_MILLI] < GPU
            if in_tree and (shares or demands[demand, c.D_SLICES] > 0):
                return UNDECIDED  # fewer pods may fit than are counted
            for k in range(instant[t.KNOWN], instant[t.SAID]):
                other = v.happened[k, H_ROW]
                near = rules.pools[jobs[other, c.J_SHAPE]] & shapes[s, S_POOL_BITS] != 0
                starts = v.places[other, w.P_ENTRY] == 0 and jobs[other, c.J_PREEMPTIBLE] == 1
                if starts and near and ranks_after(jobs, row, other):
                    next_one = min(next_one, now + max(rights.min_run, 1))
        t.wake_at(v, next_one)
        known[K_HEAD], known[K_CHANGES], known[K_UNTIL], known[K_DEFINITIVE] = row, changes, next_one, definitive
        return STAYS if definitive else MAY_NOT

    serve_heads = make_serve_heads(waits if limited else None, is_held, take_places, merged)

    def serve(v: Tables) -> None:
        now, retry, rights, entries, buckets, verdicts = (
            v.instant[t.TIME], v.stands[t.RETRY], v.rights, v.entries, v.buckets, v.verdicts
        )  # fmt: skip
        count = above = 0
        if rights.keeps or retry > now:
            count = w.best_first(entries, buckets, verdicts, v.stirred, rights.heads, False, int(np.int64(0)), FOREVER)
        for i in range(count):
            entry, row, holder, soonest = rights.heads[i, 0], rights.heads[i, 1], -1, FOREVER
            if limited:
                if i > 0 and entries[entry, w.E_PRIORITY] > entries[rights.heads[i - 1, 0], w.E_PRIORITY]:
                    above = i
                holder, _, soonest, _ = holder_of(v, row, above if rights.keeps else 0)
            buckets[rights.heads[i, 3], w.B_HELD] = holder >= 0
            known = verdicts[entries[entry, w.E_KNOWN]]
            if holder >= 0:
                t.wake_at(v, soonest)
            elif retry > now and (known[w.V_ROW] == -1 or known[w.V_ROW] == entries[entry, w.E_ROW]):
                t.wake_at(v, known[w.V_UNTIL])
        queues = 1
        if limited and v.quotas.homes[0, HOME_SLOT] >= 0:
            queues = v.quotas.homes.shape[0]
        count = w.best_first(
            entries, buckets, verdicts, v.stirred, rights.heads, queues == 1, v.rules.large_gpus * GPU, FOREVER
        )
        next_late = serve_heads(v, rights.heads[:count, 1:], buckets, v.jobs, v.rules, queues, now)
        t.wake_at(v, next_late)
        if next_late < 0:
            v.instant[t.CODE] = WAITS

    return compiled(named(serve, place, *([] if take_over is None else [take_over])))
