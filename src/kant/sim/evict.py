"""Evictions in compiled instants: which jobs a blocked job stops, by the rules of `queueing/preemption/policy.py`.

Only for jobs that fit if the nodes of one domain have enough places for their pods (`placement/counted_search.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import PoolColumns
from kant.cluster.quota_condition import QuotaCondition
from kant.compiled import compiled, inlined
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU, SECOND
from kant.placement import counted_search
from kant.placement.group_kernel import G_DEMAND, G_PODS
from kant.queueing import evictable as e
from kant.queueing.preemption.levels import make_best_level
from kant.sim import tables as t
from kant.sim.blocked import (
    S_ALONE,
    S_COUNTED,
    S_FIRST,
    S_MILLI,
    S_POOL_BITS,
)
from kant.sim.tables import Tables

IN_SERVICE = int(NodeStatus.IN_SERVICE)

RECLAIM, MOVED, BACKFILL = 1, 2, 4
"""Bits of an eviction: it reclaims quota; the job starts again in the same plan; and the job had passed a late head."""

# Columns of a job that may wait again.
BUCKET, KNOWN, KEY = range(3)  # its bucket (0: unknown), its scheduling key, and its sort key
AGAIN_WIDTH = 3


class Evictions(NamedTuple):
    """What an eviction needs besides `Rights`.

    A search is exact among up to `exact` candidates, else it makes about `trials` trial placements. `domains` has the
    domain of each node, a row for each kind of counted shape; `random` has fixed random numbers. With `moves` victims
    may start elsewhere in the same plan. A stopped job loses its work since it last saved, which it does every `saves`
    µs (0: never; -1: at every moment). The stop also costs the µs in the first row of `costs` (GPUs, µs) with at least
    the job's GPUs. `again` has for each job what it needs to wait again: BUCKET, KNOWN and KEY.
    """

    exact: int
    trials: int
    moves: bool
    domains: Table
    random: Table
    saves: int
    costs: Table
    again: Table


class Blocked(NamedTuple):
    """A job that does not fit: its group, its request, where it may run, the most that its victims may hold, and the
    input of a search for victims. `table` has the running jobs: `running`, with what they hold.
    """

    table: Table
    now: int
    groups: Table
    milli: int
    own: NDArray[np.bool_]
    domain: Table
    cap: int
    claim: e.Claim
    running: e.Running
    evictions: Evictions
    jobs: Table
    held: Table
    nodes: Table
    demands: Table


@compiled
def mark(blocked: Blocked, level: int, marks: Table) -> None:
    """Write into `marks`, for each running job, whether the blocked job may evict it at a level."""
    e.mark(blocked.running, blocked.claim, level, marks)


@compiled
def fits_without(blocked: Blocked, places: Table) -> bool:
    """Return whether the blocked job fits once the running jobs at these indices of its table have left."""
    return counted_search.fits_without(
        blocked.nodes, blocked.table[:, e.R_ROW][places], blocked.jobs, blocked.held, blocked.demands, blocked.groups,
        blocked.own, blocked.domain,
    )  # fmt: skip


@compiled
def search_among(
    blocked: Blocked, places: Table, marks: Table, level: int, later: bool
) -> tuple[Table, Table, bool, bool]:
    """Search for victims among the running jobs at these indices of the table. Returns those that must stop, in order,
    and their weight; whether there are any; and whether the search was exact.

    The weight is their number, the worst rank, the cost, the milli-GPUs, and their rows in order.
    """
    running, jobs, held, claim, evictions = (
        blocked.running, blocked.jobs, blocked.held, blocked.claim, blocked.evictions
    )  # fmt: skip
    count, size, used = places.shape[0], 0, 0
    for i in places:
        size += jobs[blocked.table[i, e.R_ROW], c.J_PIECES]
    pieces, begin = np.empty((size, held.shape[1]), dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    rows, milli, cost = (
        np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    )  # fmt: skip
    ranks, passed = np.empty((count, 2), dtype=np.int64), np.empty(count, dtype=np.bool_)
    homes = np.empty(count, dtype=np.int64)
    for k in range(count):
        i = places[k]
        job = jobs[blocked.table[i, e.R_ROW]]
        rows[k], milli[k], homes[k] = blocked.table[i, e.R_ROW], job[c.J_MILLI], max(blocked.table[i, e.R_HOME], -1)
        ran = blocked.now - job[c.J_STARTED]
        if job[c.J_CHECKPOINT] > 0:
            ran %= job[c.J_CHECKPOINT]
        cost[k] = ran // SECOND * job[c.J_MILLI]
        ranks[k, 0], ranks[k, 1] = marks[i] & e.RECLAIMED == 0, job[c.J_PRIORITY]
        passed[k] = marks[i] & e.PASSED != 0
        for piece in range(job[c.J_PIECE], job[c.J_PIECE] + job[c.J_PIECES]):
            c.copy_row(held, piece, pieces, used)
            used += 1
        begin[k + 1] = used
    condition = QuotaCondition(
        running.limits, running.used, claim.first, claim.amounts, homes, running.held[places], running.parts,
        running.entitled, level, True,
    )  # fmt: skip
    pool = PoolColumns(rows, pieces, begin, milli, cost, ranks, passed)
    chosen, found, exact = counted_search.search_counted(
        blocked.nodes, blocked.demands, blocked.groups, blocked.milli, blocked.own, blocked.domain, pool, condition,
        blocked.cap, evictions.exact, evictions.trials, evictions.random,
    )  # fmt: skip
    count = chosen.shape[0]
    weight = np.zeros(5 + count, dtype=np.int64)
    if found and count > 0:
        weight[0], weight[1], weight[2] = count, ranks[chosen[count - 1], 0], ranks[chosen[count - 1], 1]
        for k in range(count):
            weight[3] += cost[chosen[k]]
            weight[4] += milli[chosen[k]]
        in_order = np.sort(rows[chosen])
        for k in range(count):
            weight[5 + k] = in_order[k]
    return places[chosen], weight, bool(found), bool(exact)


best_level = make_best_level(mark, fits_without, search_among, compiled)


@compiled
def blocked_by(
    now: int, s: int, claim: e.Claim, running: e.Running, cap: int, evictions: Evictions, shapes: Table, groups: Table,
    jobs: Table, held: Table, view: Table, demands: Table,
) -> Blocked:  # fmt: skip
    """Return the data of a job that does not fit while these jobs run; its victims hold at most `cap` milli-GPUs."""
    group, own = groups[shapes[s, S_FIRST]], np.empty(view.shape[0], dtype=np.bool_)
    for node in range(view.shape[0]):
        own[node] = view[node, c.STATUS] == IN_SERVICE and shapes[s, S_POOL_BITS] >> view[node, c.POOL] & 1 == 1
    asked = np.empty((1, 2), dtype=np.int64)
    asked[0, 0], asked[0, 1] = group[G_PODS], group[G_DEMAND]
    return Blocked(
        running.table, now, asked, shapes[s, S_MILLI], own, evictions.domains[shapes[s, S_COUNTED]], cap, claim,
        running, evictions, jobs, held, view, demands,
    )  # fmt: skip


@compiled
def find_passers(v: Tables, row: int, s: int, passers: Table) -> tuple[Table, bool]:
    """Return which jobs of `passers` stop so that job `row` fits, in the order of the stops; and whether it then fits.

    `row` is a late head (`queueing/late_heads.py`), `passers` are running. The rules: `preempt_backfilled`.
    """
    count, jobs, running = passers.shape[0], v.jobs, v.running
    pools, amounts = v.shapes[s, S_POOL_BITS], v.quotas.amounts[s]
    table = e.running_table(passers, jobs, v.shapes[:, S_POOL_BITS].copy(), v.quotas.homes, 0)
    theirs = e.Running(
        table, running.held[:count], running.borrows[:count], running.limits, running.used, running.parts,
        running.entitled,
    )  # fmt: skip
    claim = e.Claim(
        row, jobs[row, c.J_QUEUE], -1, jobs[row, c.J_PRIORITY], jobs[row, c.J_SINCE], -1, pools, amounts, False, False,
        False, False,
    )  # fmt: skip
    blocked = blocked_by(
        v.instant[t.TIME], s, claim, theirs, FOREVER, v.evictions, v.shapes, v.groups, jobs, v.held, v.trial, v.demands
    )
    chosen, _, found, _ = search_among(blocked, np.arange(count), np.zeros(count, dtype=np.int64), e.BORROWING, False)
    return passers[chosen], found


@compiled
def find_victims(
    now: int, s: int, claim: e.Claim, running: e.Running, most: float, evictions: Evictions, shapes: Table,
    groups: Table, jobs: Table, held: Table, view: Table, demands: Table,
) -> tuple[Table, Table, int, bool]:  # fmt: skip
    """Return the rows of the jobs that stop for a job, in order; and 1 for each from which quota is reclaimed, else 0.

    If no job stops, also returns when (µs) time alone may change that, -1 for never; and whether it is proven that
    nothing else does. See `Preemption.free_capacity`.
    """
    blocked = blocked_by(
        now, s, claim, running, int(most * shapes[s, S_MILLI]), evictions, shapes, groups, jobs, held, view, demands
    )
    chosen, marks, retry, definitive = best_level(
        blocked, now, e.levels_of(running, claim), running.table.shape[0], blocked.cap, evictions.exact,
        claim.first >= 0, True,
    )  # fmt: skip
    leaving, gives = np.empty(chosen.shape[0], dtype=np.int64), np.empty(chosen.shape[0], dtype=np.int64)
    for k in range(chosen.shape[0]):
        leaving[k], gives[k] = running.table[chosen[k], e.R_ROW], marks[chosen[k]] & e.RECLAIMED != 0
    return leaving, gives, retry, definitive


@compiled
def look_for_victims(
    v: Tables, s: int, claim: e.Claim, running: e.Running, evictions: Evictions | None
) -> tuple[int, int, Table, Table]:
    """Return what `finds_victims` returns for a job; then, as `find_victims` does, the victims and their marks.

    MAY_BE without victims: Python has to search.
    """
    now, rights, nobody = v.instant[t.TIME], v.rights, np.empty(0, dtype=np.int64)
    found, retry = e.finds_victims(now, running, claim, int(rights.most * v.shapes[s, S_MILLI]), rights.exact)
    if evictions is None or found != e.MAY_BE or v.shapes[s, S_COUNTED] < 0 or v.shapes[s, S_ALONE] == 1:
        return int(found), int(retry), nobody, nobody
    leaving, gives, retry, proven = find_victims(
        now, s, claim, running, rights.most, evictions, v.shapes, v.groups, v.jobs, v.held, v.trial, v.demands
    )
    found = e.MAY_BE if leaving.shape[0] > 0 else e.NONE_PROVEN if proven else e.NONE_FOUND
    return int(found), int(retry), leaving, gives


@inlined
def work_lost(evictions: Evictions, milli: int, ran: int) -> int:
    """Return by how much the remaining work of a job grows if it stops after it has run for `ran`, µs."""
    gpus, cost = -(-milli // GPU), 0
    for k in range(evictions.costs.shape[0]):
        cost = evictions.costs[k, 1]
        if gpus <= evictions.costs[k, 0]:
            break
    if evictions.saves < 0:
        return int(cost)
    return int(cost + (ran % evictions.saves if evictions.saves > 0 else ran))
