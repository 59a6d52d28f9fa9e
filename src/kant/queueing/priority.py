"""Priority is kept: a job does not pass a blocked job of strictly higher priority where that may delay it.

A blocked job *holds* the jobs of lower priority that compete for its nodes: at first all of them, and after a while
only those that cannot be preempted for it at once. Design note 51 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import J_PRIORITY, J_QUEUE, POOL, STATUS, Table
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import Outranked
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.queueing.buckets import Head
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING
from kant.queueing.holders import CAPACITY, NOTHING, QUOTA, QUOTA_OF_USER, HolderOf, make_holder_of, take_pods
from kant.queueing.preemption.entitlement import Entitlements, Mask
from kant.queueing.tries import find_place


class Holding(NamedTuple):
    """The blocked jobs that hold a job. The first of them is `row`, which holds the job until `until` (µs). `soonest`:
    when the first hold ends (µs). `shapes`: the shapes of all holders; None if one waits for quota or its queue.
    """

    row: int
    until: int
    soonest: int
    shapes: list[int] | None


class PriorityHolds:
    """Which blocked jobs hold which waiting jobs in one cycle.

    For the first `hold` µs of its wait a blocked job holds all jobs of lower priority, and for `hold_fixed` µs those
    that could not be preempted for it at once.
    """

    def __init__(self, cycle: CyclePlan, hold: int, hold_fixed: int) -> None:
        self.cycle, self.state = cycle.weak, cycle.state
        self.hold, self.hold_fixed = hold, max(hold, hold_fixed)
        self._above: dict[tuple[int, int], Table] = {}
        self._holder_of = _built(cycle.limited)

    def holders(self, row: int, shape: Shape, grows: bool = False) -> Holding | None:
        """Return which blocked jobs hold a job now, or keep a running gang from growing (`grows`); None if no job."""
        state, usage, tree = self.state, self.state.quota_usage, self.state.quota_usage.tree
        above = self._above.get((self.cycle.pending.rounds, state.jobs.item(row, J_PRIORITY)))
        if above is None or self.cycle.by_share:
            above = self._find_above(state.jobs.item(row, J_PRIORITY))
        if not len(above):
            return None
        min_run = 0 if tree is None else tree.own_min_runs.get(usage.node_of[state.jobs.item(row, J_QUEUE)], 0)
        at, until, soonest, by_capacity = self._holder_of(
            self, above, len(above), state.jobs, row, shape.index, self.cycle.now,
            self.hold_fixed if grows else self.hold, self.hold_fixed, min_run,
        )  # fmt: skip
        if at < 0:
            return None
        return Holding(above.item(at, 0), until, soonest, above[above[:, 3] == 1, 1].tolist() if by_capacity else None)

    def split(self, heads: Iterable[Head]) -> tuple[list[Head], int]:
        """Return the heads that no job holds now; and when the first hold of the others ends, µs (-1: none)."""
        free, until, shapes = list[Head](), FOREVER, self.state.shapes.shapes
        for head in heads:
            known = self._above.get((self.cycle.pending.rounds, self.state.jobs.item(head[0], J_PRIORITY)))
            holding = self.holders(head[0], shapes[head[1]]) if known is None or len(known) else None
            if holding is None:
                free.append(head)
            else:
                until = min(until, holding.soonest)
        return free, until if until < FOREVER else -1

    def growth_until(self, row: int, shape: Shape) -> int:
        """Return until when (µs) a running gang may not grow, as gained pods cannot be preempted alone; -1: it may."""
        holding = self.holders(row, shape, grows=True)
        return -1 if holding is None else holding.soonest

    def beside(self, row: int, shape: Shape, holding: Holding) -> Allocation | Outranked:
        """Place a job, on the trial, on nodes that none of its holders can ever use; or return which job holds it."""
        place = self._place_beside(row, shape, holding.shapes) if holding.shapes is not None else None
        return Outranked(self.state.ids[holding.row], holding.until) if place is None else place

    def _place_beside(self, row: int, shape: Shape, holders: Sequence[int]) -> Allocation | None:
        """Place a job, within its quota, on nodes that no job of these shapes can ever use; None if it does not fit.

        The job is placed on the trial.
        """
        cycle, nodes = self.cycle, len(self.state.empty)
        useless = np.ones(nodes, dtype=np.bool_)
        for index in holders:
            for _, demand in self.state.shapes.shapes[index].parts:
                useless &= ~takes_pods(self.state, demand)
        useful = np.zeros(nodes, dtype=np.bool_)
        for _, demand in shape.parts:
            useful |= takes_pods(self.state, demand)
        apart = np.flatnonzero(useless & useful).tolist()
        if not apart or not cycle.placer.may_fit(shape):
            return None
        with cycle.placer.trial.within(apart):
            return find_place(cycle, row, shape)

    def _is_near(self, one: int, its: int, row: int, own: int) -> bool:
        """Return whether a job and a blocked one may use the same nodes."""
        shapes, jobs = self.state.shapes, self.state.jobs
        shape, other = shapes.shapes[own], shapes.shapes[its]
        if self.cycle.by_share and jobs.item(one, J_QUEUE) != jobs.item(row, J_QUEUE):
            return False
        near = bool(other.pool_bits & shape.pool_bits & self._pools_with_nodes)
        if near and (other.ask.node_sets or shape.ask.node_sets):
            empty, admitting = self.state.empty, shapes.admitting  # nodes that left stay in node sets
            both = admitting(other, empty[:, POOL]) & admitting(shape, empty[:, POOL])
            near = bool((empty[both, STATUS] == NodeStatus.IN_SERVICE).any())
        return near

    def _lacks(self, one: int, its: int) -> int:
        """Return what a blocked job lacks, where quotas count (`holders.py`)."""
        admission, shape = self.cycle.admission, self.state.shapes.shapes[its]
        if admission.closed(one) is not None:
            return NOTHING
        short = [admission.shortage(one, option) for option in admission.options(one, shape)]
        if None in short:
            return CAPACITY
        return QUOTA if any(lack is not None and lack.limit != "user" for lack in short) else QUOTA_OF_USER

    @cached_property
    def _pools_with_nodes(self) -> int:
        """The pools that have a node, as bits: jobs compete only for these. All pools if no node ever left."""
        if not self.state.fleet_version:
            return -1
        there = self.state.empty[:, STATUS] == NodeStatus.IN_SERVICE
        return sum(1 << pool for pool in np.unique(self.state.empty[there, POOL]).tolist())

    def _find_above(self, priority: int) -> Table:
        """Return the first jobs of the buckets that have a higher priority, best first.

        These have been tried before any job of lower priority, so they are blocked. They are the same for all jobs of a
        priority, unless the order ranks queues by share: then jobs of several priorities are tried in between.
        """
        pending, state = self.cycle.pending, self.state
        heads = pending.first_jobs() if state.books else pending.heads(above=priority)
        found = [
            head
            for head in heads
            if (pending.priority(head[0]) if pending.lowers else state.jobs.item(head[0], J_PRIORITY)) > priority
        ]
        above = self._above[pending.rounds, priority] = np.array(found, dtype=np.int64).reshape(-1, 4)
        return above

    def _has_more_right(self, one: int, its: int, row: int, own: int) -> bool:
        """Return whether a job is in quota, and a blocked job of another queue would borrow.

        If the blocked job ran, the other job could evict it to reclaim quota.
        """
        cycle, jobs, shapes = self.cycle, self.state.jobs, self.state.shapes.shapes
        if cycle.evictor is None or self.state.quota_usage.tree is None:
            return False
        entitlements = cycle.evictor.entitlements(cycle)
        if not entitlements.reclaims or entitlements.tree is None:
            return False
        borrows = _borrows(entitlements, jobs.item(one, J_QUEUE), shapes[its])
        return borrows and not _borrows(entitlements, jobs.item(row, J_QUEUE), shapes[own])


@cache
def _built(limited: bool) -> HolderOf:
    of = PriorityHolds
    lacks, has_more_right = (of._lacks, of._has_more_right) if limited else (None, None)
    return make_holder_of(lacks, of._is_near, has_more_right, lambda function: function)


def _borrows(entitlements: Entitlements, queue: int, shape: Shape) -> bool:
    """Return whether a queue would borrow with one more job of a shape."""
    usage = entitlements.state.quota_usage
    node, amounts = usage.node_of[queue], usage.amounts(shape)
    return node < 0 or not any(amounts) or entitlements.reach(node, amounts) == BORROWING


def takes_pods(state: ClusterState, demand: int) -> Mask:
    """Return a mask of the nodes that could hold a pod of a demand if nothing ran on them."""
    takes = np.zeros(len(state.empty), dtype=np.bool_)
    take_pods(state.empty, state.shapes.demands, demand, takes)
    return takes
