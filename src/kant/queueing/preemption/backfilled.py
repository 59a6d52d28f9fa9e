"""A head of the queue that has waited too long preempts backfilled jobs. No run-time estimates are needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from kant.cluster.columns import J_BASE, J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_SINCE, J_SUBMIT
from kant.cluster.shapes import Shape
from kant.model.decision import Start
from kant.model.placement import Allocation
from kant.model.units import FOREVER, SECOND
from kant.queueing.claims import ranks_after
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING
from kant.queueing.order import Order
from kant.queueing.ports import NotNow
from kant.queueing.preemption.candidate import Admits
from kant.queueing.preemption.entitlement import Entitlements, Mask
from kant.queueing.preemption.policy import candidates_of, evict_victims, fits_without
from kant.queueing.preemption.rules import QuotaRule
from kant.queueing.preemption.shrinking import choose_shrinking_first, surplus_candidate

UNLIMITED = 1 << 60


def backfilled_after(entitlements: Entitlements, row: int, order: Order) -> tuple[Mask, int]:
    """Return a mask of the jobs that the waiting job `row` may preempt, and when (µs) one more is added (-1: never).

    These are the preemptible jobs that started while `row` waited and that rank behind it by priority and submission.
    This ranking does not change, so none of them can preempt `row` in turn (design note 9). If `order.outgrown` is set,
    jobs rank by priority and the present keys of the order instead, whenever they started.
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
    """Yield the sets of jobs in `behind` that the head may preempt, each with its quota condition.

    A head in quota may preempt all of `behind`. A head that would borrow may preempt the jobs that borrow, and jobs of
    its own queue if it is in quota once these have left. A head that asks for no resource with a quota may preempt the
    jobs that borrow. If the profile does not reclaim quota, the head may preempt all of `behind`.
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


def _fits_without_all(
    cycle: CyclePlan, entitlements: Entitlements, row: int, shape: Shape, behind: Mask, grown: list[int]
) -> bool:
    """Return whether the head fits if all jobs of `behind` stop, all gangs in `grown` shrink to their floors, and the
    plan starts no job.
    """
    trial = cycle.placer.trial
    mark = trial.checkpoint()
    for decision in cycle.plan.decisions:
        if isinstance(decision, Start):
            trial.evict(decision.allocation)
    near = entitlements.pools & shape.pool_bits != 0
    fits = fits_without(entitlements, entitlements.rows[behind & near], row, shape, grown)
    trial.rollback(mark)
    return fits


def preempt_backfilled(cycle: CyclePlan, row: int, shape: Shape) -> Allocation | NotNow:
    """Evict as few backfilled jobs as necessary, if the late head then fits.

    A failure is definitive if the head would not fit even if all backfilled jobs stopped.
    """
    if not shape.ask.preempts:
        return NotNow()
    entitlements = cycle.evictor.entitlements(cycle) if cycle.evictor is not None else Entitlements(cycle, "off", 0)
    above = entitlements.surplus() if cycle.state.elastic else None
    by_one = not shape.order_dependent  # a gang of several groups may fit better with less room
    behind, until = backfilled_after(entitlements, row, cycle.order)
    wide = backfilled_after(above, row, cycle.order)[0] if above else None
    if until >= 0:
        cycle.wake_at(until)
    all_grown = above.rows[wide].tolist() if above is not None else []
    if by_one and not _fits_without_all(cycle, entitlements, row, shape, behind, all_grown):
        return NotNow()
    for option in cycle.admission.options(row, shape):
        if cycle.admission.shortage(row, option) is not None:
            continue
        rules = allowed_victims(entitlements, row, option, behind)
        to_shrink = allowed_victims(above, row, option, wide) if above and wide is not None else repeat(None)
        for (right, admits), grown in zip(rules, to_shrink, strict=False):
            allowed = entitlements.rows[_past_min_runtime(cycle, entitlements, right, option)].tolist()
            surplus_rows: list[int] = []
            if above is not None and grown is not None:
                surplus_rows = above.rows[_past_min_runtime(cycle, above, grown[0], option)].tolist()
            if by_one and not fits_without(entitlements, allowed, row, option, surplus_rows):
                continue
            whole = candidates_of(cycle, allowed)
            surplus = [surplus_candidate(cycle, victim, option) for victim in surplus_rows]
            chosen, _ = choose_shrinking_first(cycle, row, option, whole, surplus, UNLIMITED, admits)
            if chosen is not None:
                victims, allocation = chosen
                evict_victims(cycle, victims, row, "backfill")
                return allocation
    return NotNow(definitive=False)


def await_starts(cycle: CyclePlan, heads: list[tuple[int, Shape]]) -> None:
    """If a late head may preempt a job that the plan starts, ask for a cycle at the end of that job's minimum run time.

    If `order.outgrown` is set, or the job's queue has a longer minimum, the time is known only once the job runs.
    """
    state, jobs = cycle.state, cycle.state.jobs
    least = cycle.evictor.min_run_s * SECOND if cycle.evictor is not None else 0
    for other in [state.rows[decision.job] for decision in cycle.plan.decisions if isinstance(decision, Start)]:
        pools = state.shape_of(other).pool_bits
        if cycle.order.outgrown:
            cycle.wake_at(cycle.now + 1)
        elif jobs.item(other, J_PREEMPTIBLE) and any(
            pools & shape.pool_bits and ranks_after(jobs, row, other) for row, shape in heads
        ):
            cycle.wake_at(cycle.now + max(least, 1))


def _past_min_runtime(cycle: CyclePlan, entitlements: Entitlements, right: Mask, shape: Shape) -> Mask:
    """Return which jobs of `right` in the shape's pools ran their minimum time; ask for a cycle when another has."""
    allowed = entitlements.whole(right) & (entitlements.pools & shape.pool_bits != 0)
    protected = allowed & (entitlements.protected_until > cycle.now)
    cycle.wake_at(int(entitlements.protected_until[protected].min()) if protected.any() else -1)
    reached: Mask = allowed & ~protected
    return reached
