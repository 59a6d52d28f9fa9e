"""Priority is kept: a job does not pass a blocked job of strictly higher priority where that may delay it.

A blocked job *holds* the jobs of lower priority that compete for its nodes: at first all of them, and after a while
only those that cannot be preempted for it at once. Design note 51 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_SINCE, J_USER, POOL, STATUS
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import Outranked
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.queueing.claims import CAPACITY, NOTHING, QUOTA, QUOTA_OF_USER, competes, take_pods
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING
from kant.queueing.pending import Head
from kant.queueing.preemption.entitlement import Entitlements, Mask
from kant.queueing.tries import find_place


class Blocked(NamedTuple):
    """A waiting job of higher priority, and since when it waits (µs)."""

    row: int
    shape: Shape
    queue: int
    user: int
    since: int


class Holder(NamedTuple):
    """A blocked job that holds another one until a time (µs). `by_quota`: it lacks quota, and not only capacity."""

    row: int
    shape: Shape
    until: int
    by_quota: bool


class PriorityHolds:
    """Which blocked jobs hold which waiting jobs in one cycle.

    For the first `hold` µs of its wait a blocked job holds all jobs of lower priority, and for `hold_fixed` µs those
    that could not be preempted for it at once.
    """

    def __init__(self, cycle: CyclePlan, hold: int, hold_fixed: int) -> None:
        self.cycle, self.state = cycle.weak, cycle.state
        self.hold, self.hold_fixed = hold, max(hold, hold_fixed)
        self._above: dict[tuple[int, int], list[Blocked]] = {}

    def holders(self, row: int, shape: Shape, hold: int = -1) -> list[Holder]:
        """Return the blocked jobs that hold a job now, in queue order.

        `hold` is the length of a hold, µs (-1: that for this job).
        """
        state, found = self.state, list[Holder]()
        priority = state.jobs.item(row, J_PRIORITY)
        above = self._above.get((self.cycle.pending.rounds, priority))
        if above is None or self.cycle.by_share:
            above = self._find_above(priority)
        if not above:
            return found
        if hold < 0:
            hold = self.hold if may_be_taken_back(state, row) else self.hold_fixed
        for one in above:
            if one.since + hold > self.cycle.now:
                by_quota = self._competes(one, row, shape)
                if by_quota is not None:
                    found.append(Holder(one.row, one.shape, one.since + hold, by_quota))
        return found

    def split(self, heads: Iterable[Head]) -> tuple[list[Head], int]:
        """Return the heads that no job holds now; and when the first hold of the others ends, µs (-1: none)."""
        free, until, shapes = list[Head](), -1, self.state.shapes.shapes
        for head in heads:
            known = self._above.get((self.cycle.pending.rounds, self.state.jobs.item(head[0], J_PRIORITY)))
            holders = self.holders(head[0], shapes[head[1]]) if known is None or known else ()
            if not holders:
                free.append(head)
            for holder in holders:
                until = holder.until if until < 0 else min(until, holder.until)
        return free, until

    def growth_until(self, row: int, shape: Shape) -> int:
        """Return until when a running gang may not grow, µs; -1: it may. Gained pods cannot be preempted alone."""
        return min([holder.until for holder in self.holders(row, shape, self.hold_fixed)], default=-1)

    def beside(self, row: int, shape: Shape, holders: Sequence[Holder]) -> Allocation | Outranked:
        """Return a place for a job that none of its holders can ever use, taken on the trial; or which job holds it."""
        place = self._place_beside(row, shape, holders)
        return Outranked(self.state.ids[holders[0].row], holders[0].until) if place is None else place

    def _place_beside(self, row: int, shape: Shape, holders: Sequence[Holder]) -> Allocation | None:
        """Place a job, within its quota, on nodes that none of its holders can ever use; None if there is no place.

        The placement is taken on the trial.
        """
        cycle, nodes = self.cycle, len(self.state.empty)
        if any(holder.by_quota for holder in holders):
            return None
        useless = np.ones(nodes, dtype=np.bool_)
        for holder in holders:
            for _, demand in holder.shape.parts:
                useless &= ~takes_pods(self.state, demand)
        useful = np.zeros(nodes, dtype=np.bool_)
        for _, demand in shape.parts:
            useful |= takes_pods(self.state, demand)
        apart = np.flatnonzero(useless & useful).tolist()
        if not apart or not cycle.placer.may_fit(shape):
            return None
        with cycle.placer.trial.within(apart):
            return find_place(cycle, row, shape)

    def _competes(self, one: Blocked, row: int, shape: Shape) -> bool | None:
        """Return whether a job takes what a blocked job lacks: False for capacity, True for quota, None if it does not.

        A blocked job that lacks quota competes with the other jobs of its queue; one whose queue starts no jobs
        competes with none.
        """
        cycle, near = self.cycle, bool(one.shape.pool_bits & shape.pool_bits & self._pools_with_nodes)
        if near and (one.shape.ask.node_sets or shape.ask.node_sets):
            empty, admitting = self.state.empty, self.state.shapes.admitting  # who has left stays in its node sets
            both = admitting(one.shape, empty[:, POOL]) & admitting(shape, empty[:, POOL])
            near = bool((empty[both, STATUS] == NodeStatus.IN_SERVICE).any())
        queue, user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
        if cycle.by_share and one.queue != queue:
            return None
        lacks = self._lacks(one) if cycle.limited else CAPACITY
        more = near and lacks == CAPACITY and cycle.limited and self._has_more_right(row, shape, one)
        found = competes(lacks, near, one.queue == queue, one.user == user, more)
        return None if found == NOTHING else found == QUOTA

    def _lacks(self, one: Blocked) -> int:
        """Return what a blocked job lacks, where quotas count (`claims.py`)."""
        admission = self.cycle.admission
        if admission.closed(one.row) is not None:
            return NOTHING
        short = [admission.shortage(one.row, option) for option in admission.options(one.row, one.shape)]
        if None in short:
            return CAPACITY
        return QUOTA if any(lack is not None and lack.limit != "user" for lack in short) else QUOTA_OF_USER

    @cached_property
    def _pools_with_nodes(self) -> int:
        """The pools that have a node, as bits: jobs do not compete for the others. All pools if no node ever left."""
        if not self.state.fleet_version:
            return -1
        there = self.state.empty[:, STATUS] == NodeStatus.IN_SERVICE
        return sum(1 << pool for pool in np.unique(self.state.empty[there, POOL]).tolist())

    def _find_above(self, priority: int) -> list[Blocked]:
        """Return the first jobs of the buckets that have a higher priority, best first.

        They have been tried before any job of lower priority, so they are blocked. They are the same for all jobs of a
        priority, unless queues share: then jobs of several priorities are tried in between.
        """
        pending, state = self.cycle.pending, self.state
        heads = pending.first_jobs() if state.books else pending.heads(above=priority)
        shapes = state.shapes.shapes
        found = self._above[pending.rounds, priority] = [
            Blocked(row, shapes[shape], *state.jobs[row, [J_QUEUE, J_USER, J_SINCE]].tolist())
            for row, shape, *_ in heads
            if (pending.priority(row) if pending.lowers else state.jobs.item(row, J_PRIORITY)) > priority
        ]
        return found

    def _has_more_right(self, row: int, shape: Shape, one: Blocked) -> bool:
        """Return whether a job is in quota, and a blocked job of another queue would borrow.

        If the blocked job ran, the other one could reclaim its place.
        """
        cycle, usage, queue = self.cycle, self.state.quota_usage, self.state.jobs.item(row, J_QUEUE)
        if cycle.evictor is None or usage.tree is None or one.queue == queue:
            return False
        entitlements = cycle.evictor.entitlements(cycle)
        if not entitlements.reclaims or entitlements.tree is None:
            return False
        return _borrows(entitlements, one.queue, one.shape) and not _borrows(entitlements, queue, shape)


def _borrows(entitlements: Entitlements, queue: int, shape: Shape) -> bool:
    """Return whether a queue would borrow with one more job of a shape."""
    usage = entitlements.state.quota_usage
    node, amounts = usage.node_of[queue], usage.amounts(shape)
    return node < 0 or not any(amounts) or entitlements.reach(node, amounts) == BORROWING


def may_be_taken_back(state: ClusterState, row: int) -> bool:
    """Return whether a job may be preempted as soon as it has started: its queue guarantees no minimum run time."""
    if not state.jobs.item(row, J_PREEMPTIBLE):
        return False
    usage = state.quota_usage
    return usage.tree is None or not usage.tree.own_min_runs.get(usage.node_of[state.jobs.item(row, J_QUEUE)], 0)


def takes_pods(state: ClusterState, demand: int) -> Mask:
    """Return a mask over the nodes: False if a node cannot hold a pod of a demand even when empty."""
    takes = np.zeros(len(state.empty), dtype=np.bool_)
    take_pods(state.empty, state.shapes.demands, demand, takes)
    return takes
