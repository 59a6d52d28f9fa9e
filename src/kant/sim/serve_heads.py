"""Late heads in compiled instants: whether a head that has waited too long may take the place of jobs that passed it.

The check is the one of `queueing/preemption/backfilled.py`. If a head may be served, Python decides the instant and
searches for the victims.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import first_short, would_borrow
from kant.compiled import compiled
from kant.model.units import FOREVER, GPU
from kant.placement.capacity import room_beside
from kant.placement.group_kernel import G_DEMAND, G_PODS
from kant.placement.kernels import COUNT_ALL, Kernel, named
from kant.queueing import waiting as w
from kant.queueing.claims import is_behind, ranks_after
from kant.sim import tables as t
from kant.sim.blocked import (
    HOME_MIN_RUN,
    HOME_SLOT,
    S_FIRST,
    S_GROUPS,
    S_MILLI,
    S_POOL_BITS,
    S_PREEMPTS,
    Quotas,
    borrowing_of,
    charge_running,
    holder_of,
    in_order_of_start,
    running_jobs,
)
from kant.sim.happened import H_ROW
from kant.sim.tables import Tables


class Rules(NamedTuple):
    """How a discipline serves late heads: timeouts, µs, and the size from which a job is large.

    `above` is above all priorities; `pools` has the pools of each shape, as bits. `known` has the heads that could not
    be served: the number of node changes by then, until when this holds, and 1 for heads that no backfilled job keeps
    from starting.
    """

    timeout: int
    small_timeout: int
    large: int
    above: int
    pools: Table
    known: Table


KNOWN = 64
K_HEAD, K_CHANGES, K_UNTIL, K_DEFINITIVE = range(4)
KNOWN_WIDTH = 4

PYTHON_DECIDES = -2

Serve = Callable[..., int]


@compiled
def serve_none(v: Tables, quotas: Quotas | None) -> int:
    """Serve no head. Return when time alone may let a blocked job start, µs; -1: never."""
    now, entries, verdicts, heads = v.instant[t.TIME], v.entries, v.verdicts, v.rights.heads
    if v.stands[t.RETRY] <= now:
        return -1
    count = w.best_first(entries, v.buckets, verdicts, v.stirred, heads, False, int(np.int64(0)), FOREVER)
    return int(w.wakes_first(entries, verdicts, heads[:count, 0].copy(), now))


@cache
def serve_kernel(place: Kernel) -> Serve:
    """Return the kernel for a profile that places groups by `place`."""

    def serve(v: Tables, quotas: Quotas | None) -> int:
        """Return when to look again without an event, µs, or PYTHON_DECIDES; -1: never.

        That is when a hold ends, when time alone may let a head start, when the next head is late, or when it may
        preempt one more job. The jobs that start in this instant hold the pieces [begun, top) of `held`.
        """
        now, changes, retry, begun, top = (
            v.instant[t.TIME], v.log[0], v.stands[t.RETRY], v.stands[t.TAKEN], v.instant[t.TOP]
        )  # fmt: skip
        said, rules, rights = v.happened[v.instant[t.KNOWN] : v.instant[t.SAID], H_ROW], v.rules, v.rights
        shapes, groups, jobs, held, demands = v.shapes, v.groups, v.jobs, v.held, v.demands
        entries, places, buckets, verdicts = v.entries, v.places, v.buckets, v.verdicts
        review, above, limited, queues = FOREVER, rules.above, False, 1
        if quotas is not None:
            limited = quotas.homes[0, HOME_SLOT] >= 0
            queues = quotas.homes.shape[0] if limited else 1
        count = 0
        is_held = np.zeros(buckets[0, w.B_REACH] + 1, dtype=np.bool_)
        if rights.keeps or retry > now:
            count = w.best_first(entries, buckets, verdicts, v.stirred, rights.heads, False, int(np.int64(0)), above)
        for i in range(count):
            entry, holder, soonest = rights.heads[i, 0], -1, FOREVER
            if quotas is not None and rights.keeps:
                holder, _, soonest, _ = holder_of(
                    now, rights.heads[i, 1], i, rights, quotas, jobs, shapes, groups, demands
                )  # fmt: skip
            known = verdicts[entries[entry, w.E_KNOWN]]
            its = known[w.V_ROW] == -1 or known[w.V_ROW] == entries[entry, w.E_ROW]
            if holder >= 0:
                is_held[rights.heads[i, 3]] = True
                review = min(review, soonest)
            elif retry > now and its and known[w.V_UNTIL] > now:
                review = min(review, known[w.V_UNTIL])
        count = w.best_first(entries, buckets, verdicts, v.stirred, rights.heads, not limited, rules.large, above)
        served = np.zeros(2 * (buckets[0, w.B_REACH] + 1), dtype=np.bool_)
        without = np.zeros((queues, served.shape[0]), dtype=np.bool_)
        knows_running = False
        for i in range(count):
            row, s = rights.heads[i, 1], rights.heads[i, 2]
            queue, large = jobs[row, c.J_QUEUE] if limited else 0, shapes[s, S_MILLI] >= rules.large
            lane = 2 * buckets[rights.heads[i, 3], w.B_REACH] + large
            if served[lane] or without[queue, lane] or (limited and rights.heads[i, 4] == 1):
                continue
            if quotas is not None:
                home, amounts = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT], quotas.amounts[s]
                if first_short(quotas.limits, quotas.used, home, amounts) >= 0:
                    continue
            until = jobs[row, c.J_SINCE] + (rules.timeout if large else rules.small_timeout)
            if until > now:
                served[lane] = True
                review = min(review, until)
                continue
            if is_held[rights.heads[i, 3]]:
                continue
            if shapes[s, S_PREEMPTS] == 0:
                without[queue, lane] = True
                continue
            known = rules.known[row % KNOWN]
            steady = top == begun  # a job that starts in this instant takes quota, and may be stopped later
            if steady and known[K_HEAD] == row and known[K_CHANGES] == changes and now < known[K_UNTIL]:
                review = min(review, known[K_UNTIL])
                served[lane], without[queue, lane] = known[K_DEFINITIVE] == 1, True
                continue
            known[K_HEAD] = -1
            if shapes[s, S_GROUPS] > 1:
                return PYTHON_DECIDES
            if not knows_running:
                running, knows_running = running_jobs(jobs, v.heap, v.ends), True
                if quotas is not None and limited:
                    running = in_order_of_start(running, jobs)
                borrowing = np.ones(running.shape[0], dtype=np.bool_)
                if quotas is not None and limited and rights.reclaims:
                    by_key = borrowing_of(running, quotas, jobs)
                    for k in range(running.shape[0]):
                        borrowing[k] = by_key[k].any() or not quotas.amounts[jobs[running[k], c.J_SHAPE]].any()
            group = groups[shapes[s, S_FIRST]]
            demand = group[G_DEMAND]
            fitting = -1 - place(
                v.trial, v.trial_log, demands, group, v.typical, v.scores, v.others, v.domains, np.int64(COUNT_ALL),
                held, top,
            )  # fmt: skip
            everyone, asks = True, False
            if quotas is not None and limited and rights.reclaims:
                everyone = not would_borrow(quotas.limits, quotas.used, home, amounts)
                asks = not everyone and amounts.any()
            # By place in `running`: whether it is of the head's queue and past its minimum run time; when it is past
            # it; and whether it may stop.
            own, ready = np.zeros(running.shape[0], dtype=np.bool_), np.empty(running.shape[0], dtype=np.int64)
            may, behind = np.empty(running.shape[0], dtype=np.bool_), np.empty(running.shape[0], dtype=np.int64)
            pieces, jobs_behind = top - begun, 0
            for k in range(running.shape[0]):
                other = running[k]
                near = rules.pools[jobs[other, c.J_SHAPE]] & shapes[s, S_POOL_BITS] != 0
                if near and jobs[other, c.J_PREEMPTIBLE] == 1 and is_behind(jobs, row, other):
                    same = asks and jobs[other, c.J_QUEUE] == queue
                    least = rights.min_run
                    if quotas is not None:
                        least = max(least, quotas.homes[jobs[other, c.J_QUEUE], HOME_MIN_RUN])
                    ready[k], may[k] = jobs[other, c.J_STARTED] + least, everyone or same or borrowing[k]
                    own[k] = same and ready[k] <= now
                    behind[jobs_behind] = k
                    jobs_behind += 1
                    pieces += jobs[other, c.J_PIECES]
            in_quota = everyone
            if (
                quotas is not None and asks and own.any()
            ):  # jobs that do not borrow may stop if the head is in quota without its queue's jobs
                charge_running(running, own, quotas, jobs, False)
                in_quota = not would_borrow(quotas.limits, quotas.used, home, amounts)
                charge_running(running, own, quotas, jobs, True)
            # The pieces of jobs that may stop now, of the others behind it, and of those that start now.
            freed = np.empty((pieces, held.shape[1]), dtype=np.int64)
            used, stop, next_one = 0, 0, FOREVER
            for later in range(2):
                for i_behind in range(jobs_behind):
                    k = behind[i_behind]
                    if (ready[k] <= now and may[k] and (in_quota or borrowing[k])) == (later == 0):
                        job = jobs[running[k]]
                        for piece in range(job[c.J_PIECES]):
                            c.copy_row(held, job[c.J_PIECE] + piece, freed, used + piece)
                        used += job[c.J_PIECES]
                        next_one = min(next_one, ready[k]) if may[k] and ready[k] > now else next_one
                stop = used if later == 0 else stop
            for piece in range(begun, top):
                c.copy_row(held, piece, freed, used + piece - begun)
            definitive = fitting + room_beside(v.trial, freed, pieces, demands, demand) < group[G_PODS]
            if definitive:
                next_one = FOREVER
            elif fitting + room_beside(v.trial, freed, stop, demands, demand) >= group[G_PODS]:
                return PYTHON_DECIDES
            else:
                shares = demands[demand, c.D_GPUS] > 1 and demands[demand, c.D_MILLI] < GPU
                if limited and (shares or demands[demand, c.D_SLICES] > 0):
                    return PYTHON_DECIDES  # fewer pods may fit than are counted
                for k in range(said.shape[0]):
                    other = said[k]
                    near = rules.pools[jobs[other, c.J_SHAPE]] & shapes[s, S_POOL_BITS] != 0
                    starts = places[other, w.P_ENTRY] == 0 and jobs[other, c.J_PREEMPTIBLE] == 1
                    if starts and near and ranks_after(jobs, row, other):
                        next_one = min(next_one, now + max(rights.min_run, 1))
            review = min(review, next_one)
            served[lane], without[queue, lane] = definitive, True
            known[K_HEAD], known[K_CHANGES], known[K_UNTIL], known[K_DEFINITIVE] = row, changes, next_one, definitive
        return int(review if review < FOREVER else -1)

    return compiled(named(serve, place))
