"""A head of the queue that has waited too long preempts backfilled jobs. This backfill needs no run-time estimates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from kant.cluster.columns import J_BASE, J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_SINCE, J_STARTED, J_SUBMIT
from kant.cluster.shapes import Shape
from kant.model.decision import Start
from kant.model.placement import Allocation
from kant.model.units import FOREVER, GPU, SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING
from kant.queueing.order import Order
from kant.queueing.ports import NotNow
from kant.queueing.preemption.candidate import Admits
from kant.queueing.preemption.entitlement import Entitlements, Mask
from kant.queueing.preemption.policy import candidates_of, evict_victims, missing_without
from kant.queueing.preemption.room_bound import comes_after
from kant.queueing.preemption.rules import QuotaRule
from kant.queueing.preemption.shrinking import choose_shrinking_first, surplus_candidate

UNLIMITED = 1 << 60


def backfilled_after(entitlements: Entitlements, row: int, order: Order) -> tuple[Mask, int]:
    """Return the preemptible jobs that started while the job waited and are behind it by priority and submission; -1.

    This order does not change, so none of them can preempt the job in turn (design note 9). If the order is `outgrown`:
    the jobs behind it by priority and that order, and when the next job falls behind it, µs (-1: none does). The run
    time of a victim may have doubled before the job is behind it in turn.
    """
    if order.outgrown:
        return _outgrown(entitlements, row, order)
    jobs = entitlements.state.jobs
    since, base, *own = jobs[row, [J_SINCE, J_BASE, J_PRIORITY, J_SUBMIT]].tolist()
    rows, priority, submit = entitlements.rows, entitlements.priority, jobs[entitlements.rows, J_SUBMIT]
    later = (submit > own[1]) | ((submit == own[1]) & (rows > row))
    behind: Mask = entitlements.preemptible & (entitlements.started >= since) & (rows != base)
    behind &= (priority < own[0]) | ((priority == own[0]) & later)
    return behind, -1


def _outgrown(entitlements: Entitlements, row: int, order: Order) -> tuple[Mask, int]:
    jobs, rows, now = entitlements.state.jobs, entitlements.rows, entitlements.cycle.now
    base, own = jobs[row, [J_BASE, J_PRIORITY]].tolist()
    key = int(order.keys(jobs, np.array([row]), now)[0])
    may = entitlements.preemptible & (rows != base) & (entitlements.priority <= own)
    falls = np.where(entitlements.priority < own, now, order.falls_behind(jobs, rows, key, now))
    later = falls[may & (falls > now)]
    until = int(later.min()) if len(later) else FOREVER
    behind: Mask = may & (falls <= now)
    return behind, until if until < FOREVER else -1


def allowed_victims(
    entitlements: Entitlements, row: int, shape: Shape, behind: Mask
) -> Iterator[tuple[Mask, Admits | None]]:
    """Yield sets of the jobs `behind` the head that it may preempt, each with the quota condition of the set.

    A head in quota may preempt all of them. A head that would borrow may preempt those that borrow, and those of its
    own queue if it is in quota once they have left. A head that asks for nothing that quotas count may preempt those
    that borrow. If the profile reclaims nothing, only the order among jobs counts.
    """
    state = entitlements.state
    queue = int(state.jobs[row, J_QUEUE])
    node = state.quota_usage.node_of[queue]
    amounts = state.quota_usage.amounts(shape)
    if not entitlements.reclaims:
        yield behind, None
        return
    limited = entitlements.tree is not None and node >= 0 and any(amounts)
    if limited and entitlements.reach(node, amounts) != BORROWING:
        yield behind, None
        return

    if limited:
        yield (
            behind & (entitlements.borrowing | (entitlements.queue == queue)),
            QuotaRule(entitlements, node, -1, amounts, 0, limited=False),
        )
    yield behind & entitlements.borrowing, None


def missing_without_all(
    cycle: CyclePlan,
    entitlements: Entitlements,
    above: Entitlements | None,
    row: int,
    shape: Shape,
    behind: Mask,
    wide: Mask | None,
) -> int:
    """Return how many pods of the head do not fit if all jobs `behind` it stop, and the plan starts none."""
    trial = cycle.placer.trial
    mark = trial.checkpoint()
    for decision in cycle.plan.decisions:
        if isinstance(decision, Start):
            trial.evict(decision.allocation)
    near = entitlements.pools & shape.pool_bits != 0
    grown = above.rows[wide].tolist() if above is not None else ()
    missing = missing_without(entitlements, entitlements.rows[behind & near].tolist(), row, shape, grown)
    trial.rollback(mark)
    return missing


def preempt_backfilled(cycle: CyclePlan, row: int, shape: Shape) -> Allocation | NotNow:
    """Evict as few backfilled jobs as necessary, if the late head then fits.

    A failure is definitive if the head would not fit even if all of them stopped.
    """
    if not shape.ask.preempts:
        return NotNow()
    late_heads, state = cycle.pending.late_heads, cycle.state
    known = None if cycle.stopped else late_heads.known(row, shape, cycle.now)  # this plan may free enough
    if known is not None and known.allowed is None:
        cycle.wake_at(known.until)
        return NotNow(definitive=known.unreclaimable)
    entitlements = cycle.evictor.entitlements(cycle) if cycle.evictor is not None else Entitlements(cycle, "off", 0)
    if known is not None:
        next_behind, next_allowed = _next_protected(entitlements, row, shape)
        if known.missing or _still_missing(cycle, entitlements, row, shape, next_behind):
            cycle.wake_at(-1 if next_allowed < 0 else int(entitlements.protected_until[next_allowed]))
            return NotNow(definitive=False)
    else:
        late_heads.forget(row)
    above = entitlements.surplus() if cycle.state.elastic else None
    by_one = not shape.order_dependent  # a gang of several groups may fit better with less room
    behind, until = backfilled_after(entitlements, row, cycle.order)
    wide = backfilled_after(above, row, cycle.order)[0] if above else None
    if until >= 0:
        cycle.wake_at(until)
    asks_all = by_one and known is None
    missing = missing_without_all(cycle, entitlements, above, row, shape, behind, wide) if asks_all else 0
    if missing:
        late_heads.add(row, missing, True, until)
        return NotNow()
    steady = by_one and not (cycle.stopped or state.elastic or cycle.order.outgrown)
    options = cycle.admission.options(row, shape)
    if cycle.limited and (len(options) > 1 or state.burst_replicas or state.books or entitlements.fair):
        steady = False
    least, counted = UNLIMITED, set[int]()
    for option in options:
        if cycle.admission.shortage(row, option) is not None:
            continue
        rules = allowed_victims(entitlements, row, option, behind)
        to_shrink = allowed_victims(above, row, option, wide) if above and wide is not None else repeat(None)
        for (right, admits), grown in zip(rules, to_shrink, strict=False):
            allowed = entitlements.rows[_past_min_runtime(cycle, entitlements, right, option)].tolist()
            surplus_rows: list[int] = []
            if above is not None and grown is not None:
                surplus_rows = above.rows[_past_min_runtime(cycle, above, grown[0], option)].tolist()
            missing = missing_without(entitlements, allowed, row, option, surplus_rows) if by_one else 0
            if missing:
                least, counted = min(least, missing), counted.union(allowed) if counted else set(allowed)
                continue
            steady = False
            whole = candidates_of(cycle, allowed)
            surplus = [surplus_candidate(cycle, victim, option) for victim in surplus_rows]
            chosen, _ = choose_shrinking_first(cycle, row, option, whole, surplus, UNLIMITED, admits)
            if chosen is not None:
                victims, allocation = chosen
                evict_victims(cycle, victims, row, "backfill")
                return allocation
    if steady and least < UNLIMITED:
        _remember(cycle, entitlements, row, shape, least, behind, counted)
    return NotNow(definitive=False)


def await_starts(cycle: CyclePlan, heads: list[tuple[int, Shape]]) -> None:
    """Ask for a cycle when a late head may preempt a job that the plan starts: at the end of its minimum run time.

    If the order is `outgrown`, or its queue has a longer minimum, that is known once the job runs.
    """
    state, jobs = cycle.state, cycle.state.jobs
    least = cycle.evictor.min_run_s * SECOND if cycle.evictor is not None else 0
    for other in [state.rows[decision.job] for decision in cycle.plan.decisions if isinstance(decision, Start)]:
        pools = state.shape_of(other).pool_bits
        if cycle.order.outgrown:
            cycle.wake_at(cycle.now + 1)
        elif jobs.item(other, J_PREEMPTIBLE) and any(
            pools & shape.pool_bits and comes_after(jobs, row, other) for row, shape in heads
        ):
            cycle.wake_at(cycle.now + max(least, 1))


def _remember(
    cycle: CyclePlan, entitlements: Entitlements, row: int, shape: Shape, missing: int, behind: Mask, allowed: set[int]
) -> None:
    """Cache what the head lacks until the next backfilled job reaches its minimum run time, if one is protected.

    If quotas decide which jobs it may preempt, these are cached too, even if no job is protected.
    """
    near = behind & (entitlements.pools & shape.pool_bits != 0)
    protected = np.flatnonzero(near & (entitlements.protected_until > cycle.now))
    until, first = -1, -1
    if len(protected):
        at = protected[np.argmin(entitlements.protected_until[protected])]
        until, first = int(entitlements.protected_until[at]), int(entitlements.rows[at])
    rights = frozenset(allowed) if cycle.limited else None
    if rights is not None or first >= 0:
        cycle.pending.late_heads.add(row, missing, False, until, first, rights, cycle.now)


def _still_missing(cycle: CyclePlan, entitlements: Entitlements, row: int, shape: Shape, next_behind: int) -> bool:
    """Return whether GPU counts prove that evicting all victims does not help a head that would borrow. Caches it."""
    state, demand = entitlements.state, shape.groups[0].demand
    if entitlements.tree is None or not entitlements.reclaims or len(shape.parts) > 1:
        return False
    if demand.gpus == 0 or demand.milli < GPU:
        return False
    head = state.jobs[row].tolist()
    node, amounts = state.quota_usage.node_of[head[J_QUEUE]], state.quota_usage.amounts(shape)
    if node < 0 or not any(amounts) or entitlements.reach(node, amounts) != BORROWING:
        return False
    pods, allowed = entitlements.room.pods(cycle.placer.trial.table, row, demand.gpus * GPU)
    if pods < shape.pods:
        until, first = -1, -1
        if next_behind >= 0:
            until, first = int(entitlements.protected_until[next_behind]), int(entitlements.rows[next_behind])
        cycle.pending.late_heads.add(row, shape.pods - pods, False, until, first, allowed, cycle.now)
    return pods < shape.pods


def _next_protected(entitlements: Entitlements, row: int, shape: Shape) -> tuple[int, int]:
    """Return the next jobs to reach their minimum run time: of those behind the head, and of those that it may preempt.

    As places in the entitlements; -1 if none is protected. The result is that of `_past_min_runtime` for all sets of
    `allowed_victims`, but only protected jobs are looked at.
    """
    if not entitlements.protected:
        return -1, -1
    state, first = entitlements.state, -1
    job = state.jobs[row].tolist()
    node, amounts = state.quota_usage.node_of[job[J_QUEUE]], state.quota_usage.amounts(shape)
    limited = entitlements.tree is not None and node >= 0 and any(amounts)
    everyone = not entitlements.reclaims or (limited and entitlements.reach(node, amounts) != BORROWING)
    for place in entitlements.protected:
        other = state.jobs[int(entitlements.rows[place])].tolist()
        later = (other[J_SUBMIT], int(entitlements.rows[place])) > (job[J_SUBMIT], row)
        behind = other[J_PRIORITY] < job[J_PRIORITY] or (other[J_PRIORITY] == job[J_PRIORITY] and later)
        if behind and other[J_STARTED] >= job[J_SINCE] and int(entitlements.pools[place]) & shape.pool_bits:
            first = place if first < 0 else first
            if everyone or entitlements.borrowing[place] or (limited and other[J_QUEUE] == job[J_QUEUE]):
                return first, place
    return first, -1


def _past_min_runtime(cycle: CyclePlan, entitlements: Entitlements, right: Mask, shape: Shape) -> Mask:
    """Return the jobs of `right` in the shape's pools past their minimum run time; ask for a cycle when the next is."""
    allowed = entitlements.whole(right) & (entitlements.pools & shape.pool_bits != 0)
    protected = allowed & (entitlements.protected_until > cycle.now)
    cycle.wake_at(int(entitlements.protected_until[protected].min()) if protected.any() else -1)
    reached: Mask = allowed & ~protected
    return reached
