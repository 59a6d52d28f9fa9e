"""Late heads in compiled instants: whether a head that has waited too long may take the place of jobs that overtook it.

The check is that of `queueing/preemption/backfilled.py` without quotas, and keeps no state. Where a head may be served
Python decides the instant, and looks for the victims.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import first_short
from kant.cluster.shapes import S_POOLS
from kant.compiled import compiled
from kant.model.units import FOREVER
from kant.placement.capacity import room_beside
from kant.placement.group_kernel import G_DEMAND, G_PODS, Domains, Scores
from kant.placement.kernels import COUNT_ALL, Kernel, named
from kant.queueing import waiting as w
from kant.queueing.preemption.room_bound import comes_after, is_behind
from kant.sim.blocked import (
    HOME_SLOT,
    S_FIRST,
    S_GROUPS,
    S_MILLI,
    S_POOL_BITS,
    S_PREEMPTS,
    Quotas,
    Rights,
    holder_of,
)
from kant.sim.ends import ENDS, JOB


class Rules(NamedTuple):
    """How a discipline serves late heads: timeouts, µs, the size from which a job is large, the victims' minimum run.

    `above` is above all priorities, `facts` are those of the shapes. `known` has heads that could not be served: the
    number of node changes by then, and until when that holds.
    """

    timeout: int
    small_timeout: int
    large: int
    min_run: int
    above: int
    facts: Table
    known: Table


KNOWN = 64
K_HEAD, K_CHANGES, K_UNTIL = range(3)

PYTHON_DECIDES = -2

Serve = Callable[..., int]


@compiled
def serve_none(
    now: int, changes: int, rules: Rules | None, rights: Rights, quotas: Quotas, retry: int, begun: int,
    said: Table, shapes: Table, groups: Table, jobs: Table, heap: Table, ends: Table, held: Table, top: int,
    view: Table, view_log: Table, demands: Table, typical: Table, scores: Scores, others: Scores,
    domains: Domains | None, entries: Table, places: Table, buckets: Table, verdicts: Table, stirred: Table,
) -> int:  # fmt: skip
    """Serve no head."""
    return -1


@cache
def serve_kernel(place: Kernel) -> Serve:
    """Return the kernel for a profile whose groups are placed by `place`."""

    def serve(
        now: int, changes: int, rules: Rules, rights: Rights, quotas: Quotas, retry: int, begun: int,
        said: Table, shapes: Table, groups: Table, jobs: Table, heap: Table, ends: Table, held: Table, top: int,
        view: Table, view_log: Table, demands: Table, typical: Table, scores: Scores, others: Scores,
        domains: Domains | None, entries: Table, places: Table, buckets: Table, verdicts: Table, stirred: Table,
    ) -> int:  # fmt: skip
        """Return when to look again without an event, µs, or PYTHON_DECIDES; -1: never.

        That is when a hold ends, when time alone may let a head start, when the next head is late, or when it may
        preempt one more job. `changes` counts the changes of nodes; the last verdict that time may change ends at
        `retry`. `said` are the jobs of this instant, of which those start that have left the queue; they hold the
        pieces [begun, top) of `held`.
        """
        review, above, limited = FOREVER, rules.above, quotas.homes[0, HOME_SLOT] >= 0
        count = 0
        is_held = np.zeros(buckets[0, w.B_REACH] + 1, dtype=np.bool_)
        if rights.keeps or retry > now:
            count = w.best_first(entries, buckets, verdicts, stirred, rights.heads, False, int(np.int64(0)), above)
        for i in range(count):
            entry, holder, soonest = rights.heads[i, 0], -1, FOREVER
            if rights.keeps:
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
        count = w.best_first(entries, buckets, verdicts, stirred, rights.heads, not limited, rules.large, above)
        served = np.zeros(2 * (buckets[0, w.B_REACH] + 1), dtype=np.bool_)
        for i in range(count):
            row, s = rights.heads[i, 1], rights.heads[i, 2]
            large = shapes[s, S_MILLI] >= rules.large
            lane = 2 * buckets[rights.heads[i, 3], w.B_REACH] + large
            if served[lane] or (limited and rights.heads[i, 4] == 1):
                continue
            home = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT]
            if first_short(quotas.limits, quotas.used, home, quotas.amounts[s]) >= 0:
                continue
            until = jobs[row, c.J_SINCE] + (rules.timeout if large else rules.small_timeout)
            if until > now:
                served[lane] = limited
                review = min(review, until)
                continue
            if is_held[rights.heads[i, 3]]:
                continue
            if limited:
                return PYTHON_DECIDES
            known = rules.known[row % KNOWN]
            if shapes[s, S_PREEMPTS] == 0:
                continue
            if known[K_HEAD] == row and known[K_CHANGES] == changes and now < known[K_UNTIL]:
                review = min(review, known[K_UNTIL])
                continue
            known[K_HEAD] = -1
            if shapes[s, S_GROUPS] > 1:
                return PYTHON_DECIDES
            group = groups[shapes[s, S_FIRST]]
            fitting = -1 - place(
                view, view_log, demands, group, typical, scores, others, domains, np.int64(COUNT_ALL), held, top
            )  # fmt: skip
            behind = np.empty(heap[0, ENDS], dtype=np.int64)
            pieces, jobs_behind = top - begun, 0
            for k in range(1, heap[0, ENDS] + 1):
                other = heap[k, JOB]
                runs = ends[other] == heap[k, ENDS] and jobs[other, c.J_PIECES] > 0
                near = rules.facts[jobs[other, c.J_SHAPE], S_POOLS] & shapes[s, S_POOL_BITS] != 0
                if runs and near and jobs[other, c.J_PREEMPTIBLE] == 1 and is_behind(jobs, row, other):
                    behind[jobs_behind] = other
                    jobs_behind += 1
                    pieces += jobs[other, c.J_PIECES]
                    jobs[other, c.J_PIECES] = -jobs[other, c.J_PIECES]  # the heap may have it twice
            # The pieces of jobs that may stop now, of those that may stop later, and of those that start now.
            freed = np.empty((pieces, held.shape[1]), dtype=np.int64)
            used, stop, next_one = 0, 0, FOREVER
            for k in range(jobs_behind):
                jobs[behind[k], c.J_PIECES] = -jobs[behind[k], c.J_PIECES]
            for later in range(2):
                for k in range(jobs_behind):
                    job = jobs[behind[k]]
                    ready = job[c.J_STARTED] + rules.min_run
                    if (ready > now) == (later == 1):
                        for piece in range(job[c.J_PIECES]):
                            c.copy_row(held, job[c.J_PIECE] + piece, freed, used + piece)
                        used += job[c.J_PIECES]
                        next_one = min(next_one, ready) if later == 1 else next_one
                stop = used if later == 0 else stop
            for piece in range(begun, top):
                c.copy_row(held, piece, freed, used + piece - begun)
            if fitting + room_beside(view, freed, pieces, demands, group[G_DEMAND]) < group[G_PODS]:
                next_one = FOREVER  # does not fit even without all of them
            elif fitting + room_beside(view, freed, stop, demands, group[G_DEMAND]) >= group[G_PODS]:
                return PYTHON_DECIDES
            else:
                for k in range(said.shape[0]):
                    other = said[k]
                    near = rules.facts[jobs[other, c.J_SHAPE], S_POOLS] & shapes[s, S_POOL_BITS] != 0
                    starts = places[other, w.P_ENTRY] == 0 and jobs[other, c.J_PREEMPTIBLE] == 1
                    if starts and near and comes_after(jobs, row, other):
                        next_one = min(next_one, now + max(rules.min_run, 1))
            review = min(review, next_one)
            known[K_HEAD], known[K_CHANGES], known[K_UNTIL] = row, changes, next_one
        return int(review if review < FOREVER else -1)

    return compiled(named(serve, place))
