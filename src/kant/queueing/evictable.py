"""Which jobs a waiting job may evict: the rules of `preemption/rules.py` on tables, for Python and compiled code.

A level is the number of queues, from the waiting job's own upwards, that stay in quota once the job runs; or BORROWING.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import all_borrow, could_ever, first_short, place_of_meeting, reach, refund_all
from kant.compiled import compiled, inlined
from kant.model.placement import NODE
from kant.model.units import FOREVER

BORROWING = -1
"""The level of a job that would make its queue borrow."""

EVERYWHERE = -1
"""All pools, as bits."""

# Columns of a running job.
R_ROW, R_QUEUE, R_HOME, R_PRIORITY, R_PREEMPTIBLE, R_STARTED = range(6)
"""R_HOME: the first quota slot of its queue; below 0: in no tree. R_PREEMPTIBLE: 1 if it may be stopped."""
R_UNTIL, R_GUARANTEED, R_POOLS, R_BASE, R_MILLI = range(6, 11)
"""R_UNTIL: the end of its minimum run time, µs. R_GUARANTEED: 1 if its queue has one. R_BASE: its base job's row."""
RUNNING_WIDTH = 11

STOPS, RECLAIMED, PASSED = 1, 2, 4
"""Bits for a running job. STOPS: it may be evicted. RECLAIMED: its queue must give back what the waiting job is
entitled to. PASSED: it passed the waiting job, so neither its minimum run time nor the cap counts.
"""


class Running(NamedTuple):
    """The running jobs in the order of their starts, what they hold and borrow by quota key, and the quotas.

    By slot: `parts` is the entitlement of a queue's own jobs, `entitled` the entitlement of the whole queue.
    """

    table: Table
    held: Table
    borrows: NDArray[np.bool_]
    limits: Table
    used: Table
    parts: Table
    entitled: Table


class Claim(NamedTuple):
    """A waiting job and its rights. `first`: the first quota slot of its queue (below 0: in no tree).

    `amounts`: what it asks for, by quota key. `pools`: where it may run, as bits; EVERYWHERE if it lacks quota.
    """

    row: int
    queue: int
    first: int
    priority: int
    since: int
    base: int
    pools: int
    amounts: Table
    by_priority: bool
    reclaims: bool
    preempts_passing: bool
    by_share: bool


@compiled
def running_table(rows: Table, jobs: Table, pools: Table, homes: Table, min_run: int) -> Table:
    """Return the table of `Running` for the running jobs `rows`.

    `pools` has the pools of each shape, as bits. `homes` has for each queue its first slot in the quota columns (below
    0: no quotas apply) and the minimum run time that it guarantees, µs. `min_run` (µs) is the minimum for all jobs.
    """
    table = np.empty((rows.shape[0], RUNNING_WIDTH), dtype=np.int64)
    for i in range(rows.shape[0]):
        job, who = jobs[rows[i]], table[i]
        home = homes[job[c.J_QUEUE]]
        who[R_ROW], who[R_QUEUE], who[R_HOME], who[R_PRIORITY] = rows[i], job[c.J_QUEUE], home[0], job[c.J_PRIORITY]
        who[R_PREEMPTIBLE], who[R_STARTED] = job[c.J_PREEMPTIBLE], job[c.J_STARTED]
        who[R_UNTIL], who[R_GUARANTEED] = job[c.J_STARTED] + max(min_run, home[1]), home[1] != 0
        who[R_POOLS], who[R_BASE], who[R_MILLI] = pools[job[c.J_SHAPE]], job[c.J_BASE], job[c.J_MILLI]
    return table


@compiled
def add_pools_held(table: Table, jobs: Table, pieces: Table, nodes: Table) -> None:
    """Add to the pools of each running job those of the nodes where it runs: its node set may have lost these nodes."""
    for i in range(table.shape[0]):
        job = jobs[table[i, R_ROW]]
        for piece in range(job[c.J_PIECE], job[c.J_PIECE] + job[c.J_PIECES]):
            table[i, R_POOLS] |= 1 << nodes[pieces[piece, NODE], c.POOL]


@inlined
def _asks(claim: Claim) -> bool:
    """Return whether the waiting job asks for something that quotas count."""
    asks = False
    for key in range(claim.amounts.shape[0] if claim.first >= 0 else 0):
        asks = asks or claim.amounts[key] > 0
    return asks


@inlined
def _is_near(claim: Claim, other: Table) -> bool:
    """Return whether a running job may be stopped at all, and holds something where the waiting job may run."""
    kin = claim.base >= 0 and (other[R_ROW] == claim.base or other[R_BASE] == claim.base)
    return bool(other[R_PREEMPTIBLE] == 1 and not kin and other[R_POOLS] & claim.pools != 0)


@inlined
def _has_passed(claim: Claim, other: Table) -> bool:
    """Return whether a running job without guaranteed run time passed the waiting job, which has a higher priority."""
    passed = claim.preempts_passing and other[R_PRIORITY] < claim.priority and other[R_STARTED] > claim.since
    return bool(passed and other[R_GUARANTEED] == 0 and (not claim.by_share or other[R_QUEUE] == claim.queue))


@inlined
def _is_lower(claim: Claim, other: Table) -> bool:
    """Return whether a running job may be evicted for its lower priority."""
    return bool((claim.by_priority and other[R_PRIORITY] < claim.priority) or _has_passed(claim, other))


@inlined
def _holds_against(running: Running, claim: Claim, home: int, level: int, asks: bool) -> bool:
    """Return whether all queues of the running job below the common ancestor borrow, and `level` reaches it."""
    if home < 0 or not asks:
        return True
    if level != BORROWING:
        place = place_of_meeting(running.limits, home, claim.first)
        if place < 0 or place > level:
            return False
    return bool(all_borrow(running.limits, running.used, running.entitled, home, claim.first, claim.amounts))


@compiled
def mark(running: Running, claim: Claim, level: int, marks: Table) -> None:
    """Write into `marks`, for each running job, whether the waiting job may evict it at a level, as bits."""
    asks = _asks(claim)
    for i in range(marks.shape[0]):
        other, holds, borrows, gives = running.table[i], False, False, False
        marks[i] = 0
        if not _is_near(claim, other):
            continue
        for key in range(running.held.shape[1]):
            holds = holds or running.held[i, key] > 0
            borrows = borrows or running.borrows[i, key]
            gives = gives or (asks and running.borrows[i, key] and claim.amounts[key] > 0)
        stops, reclaimed = _is_lower(claim, other), False
        if other[R_QUEUE] == claim.queue:
            stops = stops and (level != BORROWING or borrows or not holds)
        elif holds:
            stops = stops and borrows and _holds_against(running, claim, other[R_HOME], BORROWING, asks)
            reclaimed = claim.reclaims and gives and level != BORROWING
            reclaimed = reclaimed and _holds_against(running, claim, other[R_HOME], level, asks)
        marks[i] = STOPS * (stops or reclaimed) + RECLAIMED * reclaimed + PASSED * _has_passed(claim, other)


@compiled
def levels_of(running: Running, claim: Claim) -> Table:
    """Return the levels at which the job may evict, in the order in which they are tried: the level at which it stays
    in quota, the level after it has evicted all that it may of its own queue, and BORROWING.
    """
    levels, count = np.full(3, BORROWING, dtype=np.int64), 0
    if _asks(claim):
        limits, used = running.limits, running.used.copy()
        for turn in range(2):
            level = reach(limits, used, claim.first, claim.amounts, running.parts, running.entitled)
            if level != BORROWING and (count == 0 or level != levels[0]):
                levels[count] = level
                count += 1
            for i in range(running.table.shape[0] if turn == 0 else 0):
                other = running.table[i]
                if other[R_QUEUE] == claim.queue and _is_near(claim, other) and _is_lower(claim, other):
                    refund_all(limits, used, claim.first, running.held[i])
    return levels[: count + 1]


NONE_PROVEN, NONE_FOUND, MAY_BE = range(3)
"""Whether a search for victims can succeed: proven not to; an inexact search would find none; perhaps."""


@compiled
def finds_victims(now: int, running: Running, claim: Claim, cap: int, exact: int) -> tuple[int, int]:
    """Return whether an eviction may let a job start, and when (µs) time alone may change that; -1: never.

    No eviction helps if the job may evict no job at any level, or lacks quota even after all evictions that it may
    make. Among at most `exact` candidates the search is exact. Victims hold at most `cap` milli-GPUs.
    """
    limits, until, answer = running.limits, FOREVER, NONE_PROVEN
    if not could_ever(limits, claim.first, claim.amounts):
        return answer, -1
    marks = np.zeros(running.table.shape[0], dtype=np.int64)
    short = first_short(limits, running.used, claim.first, claim.amounts) >= 0
    for level in levels_of(running, claim):
        mark(running, claim, level, marks)
        found, milli, soonest = 0, 0, FOREVER
        used, own = running.used.copy(), running.used.copy()
        for i in range(marks.shape[0]):
            if marks[i] & STOPS == 0:
                continue
            who, passed = running.table[i], marks[i] & PASSED != 0
            milli += 0 if passed else who[R_MILLI]
            if not passed and who[R_UNTIL] > now:
                soonest = min(soonest, who[R_UNTIL])
                continue
            found += 1
            if passed or who[R_MILLI] <= cap:
                refund_all(limits, used, who[R_HOME], running.held[i])
                if who[R_HOME] == claim.first:
                    refund_all(limits, own, who[R_HOME], running.held[i])
        if soonest < FOREVER and (claim.first < 0 or milli > cap):
            return MAY_BE, -1
        until = min(until, soonest)
        if found == 0:
            continue
        lacks = first_short(limits, used, claim.first, claim.amounts) >= 0
        if level != BORROWING and not lacks:
            lacks = reach(limits, own, claim.first, claim.amounts, running.parts, running.entitled) < level
        if not short or not lacks:
            return MAY_BE, -1
        if found > exact:
            answer = NONE_FOUND
    return answer, until if until < FOREVER else -1
