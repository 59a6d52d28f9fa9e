"""Tries the waiting jobs of a compiled instant: the callbacks of `queueing/service_order.py`, which read tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import binding, charge_all, first_short, refund_all
from kant.compiled import merged
from kant.model.placement import GROUP, NODE
from kant.model.units import FOREVER
from kant.placement.group_kernel import G_NUMBER, G_PODS
from kant.placement.kernels import COUNT_ALL, Kernel
from kant.queueing import waiting as w
from kant.queueing.claims import may_evict
from kant.queueing.evictable import EVERYWHERE, MAY_BE, NONE_PROVEN, Claim
from kant.queueing.service_order import InOrder, make_in_order, make_nominate
from kant.queueing.watch import ANY_START, QUOTA, freed
from kant.sim import blocked as b
from kant.sim import happened as h
from kant.sim import tables as t
from kant.sim.ends import NOT_RUNNING
from kant.sim.evict import BACKFILL, MOVED, find_passers, look_for_victims
from kant.sim.reserve import WAITS
from kant.sim.tables import Tables

Job = tuple[int, int, int]
"""The entry of a job, its row and its shape; the entry is 0 if there is none."""

TakeOver = Callable[[Tables, int, int, Table], bool]


@merged
def following(v: Tables) -> Job:
    """Return the next job to try. After a job that has evicted others, a round over all awake buckets begins again."""
    instant, entry = v.instant, 0
    if instant[t.CODE] == 0:
        if instant[t.OPENED] == 1:
            w.fill_ready(v.entries, v.buckets, v.verdicts, v.ready)
        entry = w.next_ready(v.entries, v.buckets, v.verdicts, v.ready, 0)
    instant[t.WHAT], instant[t.OPENED], instant[t.VICTIMS] = h.STARTED, 0, NONE_PROVEN
    instant[t.MAY_EVICT], instant[t.RETRY_AT] = 0, -1
    return int(entry), int(v.entries[entry, w.E_ROW]), int(v.entries[entry, w.E_SHAPE])


# --- jobs of higher priority, and quotas -----------------------------------------------------------------------------


@merged
def is_held(v: Tables, row: int, s: int) -> bool:
    """Return whether a blocked job of higher priority holds a job. If it may fit on other nodes, Python decides."""
    instant, rights, priority = v.instant, v.rights, v.jobs[row, c.J_PRIORITY]
    if not rights.keeps:
        return False
    if priority != instant[t.ABOVE_OF]:
        instant[t.ABOVE_OF], instant[t.ABOVE] = priority, w.best_first(
            v.entries, v.buckets, v.verdicts, v.stirred, rights.heads, False, int(np.int64(0)), -priority
        )  # fmt: skip
    which, until, _, beside = b.holder_of(v, row, instant[t.ABOVE])
    if which < 0:
        return False
    instant[t.WHAT], instant[t.WHY], instant[t.WHICH] = h.OUTRANKED, until, rights.heads[which, 1]
    if beside and b.may_be_beside(v, row, instant[t.ABOVE]):
        instant[t.CODE] = WAITS
    return True


@merged
def in_quota(v: Tables, row: int, s: int) -> bool:
    """Return whether a job is within the quotas of its queue."""
    instant, quotas, limits, used = v.instant, v.quotas, v.quotas.limits, v.quotas.used
    home = quotas.homes[v.jobs[row, c.J_QUEUE], b.HOME_SLOT]
    key = first_short(limits, used, home, quotas.amounts[s])
    if key >= 0:
        instant[t.WHAT] = h.SHORT
        instant[t.WHY], instant[t.WHICH] = binding(limits, used, home + key)
    return bool(key < 0)


@merged
def evict(v: Tables, row: int, leaving: Table, why: Table) -> bool:
    """Stop the jobs `leaving` for job `row`: refund their quota, free their devices on the trial, write their events.

    Returns False if Python has to decide: one of them could not wait in compiled code, or the tables are full.
    """
    instant, jobs, quotas, pools = v.instant, v.jobs, v.quotas, 0
    for other in leaving:
        s = jobs[other, c.J_SHAPE]
        if v.shapes[s, b.S_FIRST] < 0 or v.shapes[s, b.S_ALONE] == 1:
            return False
        instant[t.MORE] += jobs[other, c.J_PODS]  # evicted jobs may start elsewhere
    if v.stands[t.TAKEN] + instant[t.MORE] > v.held.shape[0]:
        return False
    for k in range(leaving.shape[0]):
        other, said = leaving[k], instant[t.SAID]
        instant[t.SAID] = h.note(v.happened, said, instant[t.TIME], h.EVICTED, other, instant[t.INSTANTS], 0, row)
        v.happened[said, h.H_BEGIN], v.happened[said, h.H_END] = why[k], v.ends[other]
        v.ends[other] = NOT_RUNNING
        home = quotas.homes[jobs[other, c.J_QUEUE], b.HOME_SLOT]
        refund_all(quotas.limits, quotas.used, home, quotas.amounts[jobs[other, c.J_SHAPE]])
        for piece in range(jobs[other, c.J_PIECE], jobs[other, c.J_PIECE] + jobs[other, c.J_PIECES]):
            c.give_piece(v.trial, v.held[piece], v.demands)
            c.note_piece(v.trial, v.trial_log, v.held[piece], v.demands)
            pools |= 1 << v.trial[v.held[piece, NODE], c.POOL]
    instant[t.OPENED], instant[t.EVICTS], instant[t.RUNNING], instant[t.ABOVE_OF] = 1, 1, -1, FOREVER
    woke = w.wake(v.entries, v.buckets, v.verdicts, v.ready, ANY_START | QUOTA, pools, False, instant[t.TIME])
    v.stands[t.MAY_TRY] |= woke & w.MAY_TRY
    return True


# --- what happens to a job --------------------------------------------------------------------------------------------


@merged
def record(v: Tables, row: int) -> None:
    """Record why a job waits, once for each wait."""
    instant = v.instant
    if v.places[row, w.P_RECORDED] == 0:
        v.places[row, w.P_RECORDED] = 1
        instant[t.SAID] = h.note(
            v.happened, instant[t.SAID], instant[t.TIME], instant[t.WHAT], row, instant[t.INSTANTS], instant[t.WHY],
            instant[t.WHICH],
        )  # fmt: skip


@merged
def step_aside(v: Tables, entry: int, row: int, s: int) -> None:
    """Let a job that is held wait for the next instant."""
    w.pop_ready(v.entries, v.buckets, v.ready)
    v.stands[t.MAY_TRY] = 1
    record(v, row)


@merged
def sleep(v: Tables, entry: int, row: int, s: int) -> None:
    """Let a job wait until a change may help it. If it may evict somebody, Python decides."""
    instant, stands, rights = v.instant, v.stands, v.rights
    victims, retry, may = instant[t.VICTIMS], instant[t.RETRY_AT], instant[t.MAY_EVICT] == 1
    if victims == MAY_BE or v.shapes[s, b.S_ALONE] == 1:
        instant[t.CODE] = WAITS
        return
    stands[t.RETRY] = max(stands[t.RETRY], retry)
    if v.verdicts[0, w.V_ROW] == 0:
        freed(v.pools, v.watched)
        stands[t.LOG], stands[t.WAKES_ON] = v.log[0], 0
    may_later = rights.evicts and v.shapes[s, b.S_PREEMPTS] == 1
    proven = victims == NONE_PROVEN and not (may_later and v.jobs[row, c.J_PRIORITY] > instant[t.STARTED_LEAST])
    if not proven:
        stands[t.DOUBTS] = stands[t.MAY_TRY] = 1
    stands[t.WAKES_ON] |= w.learn(
        v.entries, v.verdicts, entry, v.shapes[s, b.S_POOL_BITS], rights.sees, retry, proven, not may,
        instant[t.WHAT] == h.SHORT, instant[t.TIME],
    )  # fmt: skip
    record(v, row)


@cache
def tries_kernels(place: Kernel, limited: bool, evicts: bool) -> tuple[InOrder, InOrder, TakeOver]:
    """Return the functions that try the awake jobs, that start evicted jobs elsewhere, and that serve a late head.

    `place` places a group of a job.

    `limited`: there are quotas or several priorities. With `evicts` a job may evict running jobs.
    """

    @merged
    def first(v: Tables) -> Job:
        """Wake the keys whose jobs may fit, and begin a round."""
        stands, instant, shapes, groups = v.stands, v.instant, v.shapes, v.groups
        for i in range(w.rouse(v.verdicts, v.stirred, instant[t.TIME]) if stands[t.DOUBTS] == 1 else 0):
            s, fits = v.verdicts[v.stirred[i], w.V_SHAPE], True
            for g in range(shapes[s, b.S_FIRST], shapes[s, b.S_FIRST] + shapes[s, b.S_GROUPS]):
                found = place(
                    v.trial, v.trial_log, v.demands, groups[g], v.typical, v.scores, v.others, v.domains,
                    np.int64(COUNT_ALL), v.held, v.instant[t.TOP],
                )  # fmt: skip
                fits = fits and -1 - found >= groups[g, G_PODS]
            w.settle(v.entries, v.places, v.buckets, v.verdicts, v.stirred[i], fits, False, instant[t.TIME])
        stands[t.MAY_TRY] = stands[t.DOUBTS] = 0
        instant[t.OPENED] = 1
        return following(v)

    @merged
    def fits(v: Tables, row: int, s: int) -> bool:
        """Place all pods of a job on the trial; return whether they fit."""
        instant, end = v.instant, v.instant[t.TOP]
        for g in range(v.shapes[s, b.S_FIRST], v.shapes[s, b.S_FIRST] + v.shapes[s, b.S_GROUPS]):
            placed = end
            end = place(
                v.trial, v.trial_log, v.demands, v.groups[g], v.typical, v.scores, v.others, v.domains,
                v.groups[g, G_PODS], v.held, placed,
            )  # fmt: skip
            if end < 0:
                instant[t.WHAT], instant[t.WHY], instant[t.WHICH] = h.HELD, -1 - end, 0
                return False
            for piece in range(placed, end):
                v.held[piece, GROUP] = v.groups[g, G_NUMBER]
        instant[t.END] = end
        return True

    @merged
    def frees_capacity(v: Tables, row: int, s: int) -> bool:
        """Evict running jobs for a job and place it on what they free; return whether this was possible."""
        instant, rights, quotas, jobs, least = v.instant, v.rights, v.quotas, v.jobs, v.stands[t.LOWEST]
        home, amounts = quotas.homes[jobs[row, c.J_QUEUE], b.HOME_SLOT], quotas.amounts[s]
        may = v.shapes[s, b.S_PREEMPTS] == 1 and may_evict(
            jobs[row, c.J_PRIORITY], least if rights.by_priority or rights.keeps else FOREVER, rights.reclaims,
            quotas.limits, quotas.used, home, amounts, v.stands[t.BEYOND] == 1,
        )  # fmt: skip
        if not may:
            return False
        running = b.running_of(v)
        claim = Claim(
            row, jobs[row, c.J_QUEUE], home if amounts.shape[0] > 0 else -1, jobs[row, c.J_PRIORITY],
            jobs[row, c.J_SINCE], -1, EVERYWHERE if instant[t.WHAT] == h.SHORT else v.shapes[s, b.S_POOL_BITS], amounts,
            rights.by_priority, rights.reclaims, rights.keeps, False,
        )  # fmt: skip
        instant[t.MAY_EVICT] = 1
        instant[t.VICTIMS], instant[t.RETRY_AT], leaving, gives = look_for_victims(v, s, claim, running, v.evictions)
        if evicts:
            return leaving.shape[0] > 0 and evict(v, row, leaving, gives) and in_quota(v, row, s) and fits(v, row, s)
        return False

    @merged
    def start(v: Tables, entry: int, row: int, s: int) -> None:
        """Start a job on the pieces placed for it, and remove it from its bucket if `entry` is not 0."""
        instant, stands, jobs = v.instant, v.stands, v.jobs
        instant[t.SAID] = h.note(
            v.happened, instant[t.SAID], instant[t.TIME], h.STARTED, row, instant[t.INSTANTS], instant[t.TOP],
            instant[t.END] - instant[t.TOP],
        )  # fmt: skip
        instant[t.TOP] = instant[t.END]
        if limited:
            home = v.quotas.homes[jobs[row, c.J_QUEUE], b.HOME_SLOT]
            charge_all(v.quotas.limits, v.quotas.used, home, v.quotas.amounts[s])
        if jobs[row, c.J_PREEMPTIBLE] == 1:
            instant[t.STARTED_LEAST] = min(instant[t.STARTED_LEAST], jobs[row, c.J_PRIORITY])
        if stands[t.WAKES_ON] & ANY_START != 0:
            woke = w.wake(v.entries, v.buckets, v.verdicts, v.ready, ANY_START, 0, False, instant[t.TIME])
            stands[t.MAY_TRY] |= woke & w.MAY_TRY
        if entry > 0:
            w.remove(v.entries, v.places, v.buckets, entry)

    @merged
    def take_over(v: Tables, row: int, s: int, passers: Table) -> bool:
        """Start a late head on devices of running jobs that have passed it. Returns False if Python has to decide."""
        if v.shapes[s, b.S_COUNTED] < 0:
            return False
        leaving, found = find_passers(v, row, s, passers)
        count = leaving.shape[0]
        if not found or (count == 0 and v.instant[t.EVICTS] == 0):
            return False
        if (count > 0 and not evict(v, row, leaving, np.full(count, BACKFILL))) or not fits(v, row, s):
            return False
        start(v, v.places[row, w.P_ENTRY], row, s)
        return True

    has_quota = in_quota if limited else None
    has_place = make_nominate(None, has_quota, fits, None, merged)

    @merged
    def restart(v: Tables) -> None:
        """Start the evicted jobs elsewhere, if they fit within their quotas."""
        instant, happened, jobs = v.instant, v.happened, v.jobs
        for k in range(instant[t.KNOWN], instant[t.SAID]):
            row = happened[k, h.H_ROW]
            if happened[k, h.H_WHAT] == h.EVICTED and has_place(v, row, jobs[row, c.J_SHAPE]):
                happened[k, h.H_BEGIN] |= MOVED
                start(v, 0, row, jobs[row, c.J_SHAPE])

    nominate = make_nominate(None, has_quota, fits, frees_capacity if limited else None, merged)
    held = is_held if limited else None
    return make_in_order(first, following, held, None, nominate, start, step_aside, sleep, merged), restart, take_over
