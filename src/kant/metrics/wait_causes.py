"""Causes of waiting: one cause at a time for a waiting job, found from counts as far as these suffice.

Causes are checked in the order in which a cycle checks them: what keeps the job from being tried, which jobs are ahead
of it, its quota, the free capacity, and only then the topology.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.over_budget import first_of
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.model.decision import NoFit
from kant.model.placement import NODE, gpu_milli
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.queueing.admission import Admission
from kant.scheduler.cycle import Scheduler


class Cause(StrEnum):
    """The cause of a job's wait."""

    QUOTA = "quota"  # a limit of the job's queue, of a queue above it or of its user binds
    QUOTA_LENT = "quota-lent"  # the job's queue is within its own quota, but other queues have borrowed part of it
    CAPACITY = "capacity"  # the pools that admit the job have less free capacity in total than it requests
    FRAGMENTATION = "fragmentation"  # enough is free in total, but the job does not fit
    RULES = "rules"  # the job would fit without rules among pods and amounts of nodes such as their power cap
    TOPOLOGY = "topology"  # the job would fit, but not in one domain of the level that it requires
    RESERVATION = "reservation"  # the job would fit, but the devices are reserved for others
    PRIORITY = "priority"  # jobs of higher priority are ahead of the job, or hold the GPUs that it lacks
    ORDER = "order"  # other jobs are ahead of the job in a strict order
    GATED = "gated"  # the job's queue is closed, its back-off runs, or its base job does not run
    OTHER = "other"  # no cause is known, or no cycle has looked at the job yet


@dataclass(slots=True)
class Waiter:
    """The common properties of some waiting jobs that determine their cause.

    `row` is one of them, `options` the shapes in which they may be tried, `node` their queue in the quota tree (-1:
    none). `bucket` is their bucket under a strict order; None for its first job, and under other orders.
    """

    row: int
    shape: Shape
    options: list[Shape]
    node: int
    user: int
    priority: int
    bucket: tuple[int, ...] | None = None
    tried: tuple[int, Cause | None] = (-1, None)  # stamp of the last try, and why there was no place


@dataclass(slots=True)
class WaitClassifier:
    """Finds causes. Call `follow` first, at every instant; free capacity is counted once per instant."""

    scheduler: Scheduler
    heads: dict[tuple[int, ...], int] = field(default_factory=dict)  # first job by bucket, under a strict order
    _room: FreeByPools | None = None
    _diagnosis: Diagnosis | None = None
    _held: HeldByPriority | None = None

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    @property
    def strict(self) -> bool:
        """Whether one bucket holds jobs of several shapes, so that its head blocks jobs that would fit."""
        discipline = self.scheduler.profile.discipline
        return discipline.buckets and discipline.bucket(0, 1) == discipline.bucket(0, 2)

    def waiter(self, row: int, bucket: tuple[int, ...] | None) -> Waiter:
        """Return the properties that determine the cause of one waiting job."""
        state, shape = self.state, self.state.shape_of(row)
        queue, user, priority = state.jobs[row, [c.J_QUEUE, c.J_USER, c.J_PRIORITY]].tolist()
        if not self.scheduler.profile.discipline.quotas or state.quota_usage.tree is None:
            return Waiter(row, shape, [shape], -1, user, priority, bucket)
        options = Admission(state).options(row, shape)
        return Waiter(row, shape, options, state.quota_usage.node_of[queue], user, priority, bucket)

    def follow(self, moved: list[int] | None) -> None:
        """Update the counts after the jobs `moved` have started, stopped or arrived (None: unknown which)."""
        if moved is None or self._held is None:
            self._held, moved = HeldByPriority(self.state), list(self.state.running)
        if self.scheduler.profile.order.by_priority:
            self._held.follow(moved)
        self._room = self._diagnosis = None

    def cause(self, waiter: Waiter) -> Cause:
        """Return what these jobs wait for from now on."""
        tree = self.state.quota_usage.tree
        has_quotas = self.scheduler.profile.discipline.quotas and tree is not None
        if has_quotas and (waiter.node < 0 or not tree.starts[waiter.node]):  # type: ignore[union-attr]
            return Cause.GATED
        over = self.state.quota_usage.over_budget(self.state.now)
        if over is not None and first_of(over.hard, tree, waiter.node, waiter.user) is not None:  # type: ignore[arg-type]
            return Cause.GATED
        if waiter.bucket is not None:
            return self._behind(waiter)
        self._room = self._room or FreeByPools(self.state)
        lacks = self._room.lacks(waiter.shape)
        kept = self._kept_by_quota(waiter, lacks) if has_quotas else None
        if kept is not None:
            return kept
        if lacks:
            assert self._held is not None
            held = self._held.above(waiter.priority, waiter.shape)
            return Cause.PRIORITY if held and not self._room.lacks(waiter.shape, held) else Cause.CAPACITY
        return self._in_spite_of_room(waiter)

    def _behind(self, waiter: Waiter) -> Cause:
        assert waiter.bucket is not None
        head = self.heads.get(waiter.bucket)
        if head is None or not self.scheduler.profile.order.by_priority:
            return Cause.ORDER
        return Cause.PRIORITY if self.state.jobs[head, c.J_PRIORITY] > waiter.priority else Cause.ORDER

    def _kept_by_quota(self, waiter: Waiter, lacks: bool) -> Cause | None:
        """Return the cause, if the quotas do not let the job start in any of its shapes.

        If the queue is beyond its own quota, its whole tree is in use, and the cluster also `lacks` room, the cause is
        the cluster, since more quota would not help.
        """
        quota_usage = self.state.quota_usage
        tree = quota_usage.tree
        assert tree is not None
        kept: Cause | None = None
        all_in_use = False
        for shape in waiter.options:
            amounts = quota_usage.amounts(shape)
            short = tree.shortage(waiter.node, waiter.user, amounts)
            if short is None:
                return None
            if kept is None:
                entitled = short.kind != "user" and all(
                    tree.usage(waiter.node, key) + amount <= tree.nominal(waiter.node, key)
                    for key, amount in enumerate(amounts)
                    if amount > 0
                )
                kept = Cause.QUOTA_LENT if entitled else Cause.QUOTA
                all_in_use = short.kind == "quota" and short.queue != waiter.node
        return None if kept is Cause.QUOTA and all_in_use and lacks else kept

    def _in_spite_of_room(self, waiter: Waiter) -> Cause:
        """Return the cause if enough is free in total."""
        kept = self._place_that_lacks(waiter)
        if kept is not None:
            return kept
        if self.scheduler.pending.mixed and self._is_held(waiter):
            return Cause.PRIORITY
        if self.state.reserved or self.state.bookings:
            return Cause.RESERVATION
        tried = self.scheduler.profile.discipline.buckets or self.scheduler.forecast is not None
        return Cause.OTHER if tried else Cause.ORDER  # disciplines without buckets have filled the cluster in order

    def _is_held(self, waiter: Waiter) -> bool:
        """Return whether a blocked job of higher priority keeps these jobs from passing it."""
        jobs, columns = self.state.jobs, [c.J_QUEUE, c.J_SHAPE, c.J_PRIORITY]
        like = jobs[waiter.row, columns].tolist()
        row = next((row for row in self.state.pending if jobs[row, columns].tolist() == like), None)
        if row is None:
            return False
        self._diagnosis = self._diagnosis or Diagnosis(self.scheduler)
        return self.scheduler.profile.discipline.held_by(self._diagnosis.cycle, row) is not None

    def _place_that_lacks(self, waiter: Waiter) -> Cause | None:
        """Return why there is no place, ignoring reservations; None if there is one. A negative result holds until
        something is freed."""
        state, shape = self.state, waiter.shape
        freed = int(state.log[0]) if shape.order_dependent else int(state.pools[list(shape.pools), c.P_FREED].sum())
        stamp, kept = waiter.tried
        if kept is None or stamp != freed:
            kept = None
            if not self._fits(shape, waiter.row):
                anywhere, unruled = state.shapes.anywhere(shape), state.shapes.anywhere(shape, ruled=False)
                far = anywhere is not shape and self._fits(anywhere, waiter.row)
                ruled = not far and unruled is not anywhere and self._fits(unruled, waiter.row)
                kept = Cause.TOPOLOGY if far else Cause.RULES if ruled else Cause.FRAGMENTATION
            waiter.tried = (freed, kept)
        return kept

    def _fits(self, shape: Shape, row: int) -> bool:
        self._diagnosis = self._diagnosis or Diagnosis(self.scheduler)
        with self._diagnosis.rolled_back():
            return not isinstance(self._diagnosis.placer.place(shape, row), NoFit)


class HeldByPriority:
    """The milli-GPUs that running jobs of each priority hold in each pool."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._held: Counter[tuple[int, int]] = Counter()  # (priority, pool) -> milli-GPUs
        self._of: dict[int, list[tuple[tuple[int, int], int]]] = {}  # running job -> its contributions
        self._ladders: dict[int, tuple[list[int], list[int]]] = {}  # by pools: priorities, cumulative milli-GPUs

    def follow(self, moved: list[int]) -> None:
        """Count these jobs again."""
        state = self.state
        if moved:
            self._ladders.clear()
        for row in moved:
            for key, milli in self._of.pop(row, ()):
                self._held[key] -= milli
                if not self._held[key]:
                    del self._held[key]
            if row in state.running:
                priority, pools = int(state.jobs[row, c.J_PRIORITY]), state.table[:, c.POOL]
                self._of[row] = [
                    ((priority, int(pools[piece[NODE]])), gpu_milli(piece[None])) for piece in state.running[row]
                ]
                for key, milli in self._of[row]:
                    self._held[key] += milli

    def above(self, priority: int, shape: Shape) -> int:
        """Return the milli-GPUs that jobs of higher priority hold in the shape's pools."""
        ladder = self._ladders.get(shape.pool_bits)
        if ladder is None:
            ladder = self._ladders[shape.pool_bits] = self._ladder(shape)
        priorities, up_to = ladder
        return up_to[-1] - up_to[bisect_right(priorities, priority)]

    def _ladder(self, shape: Shape) -> tuple[list[int], list[int]]:
        held: Counter[int] = Counter()
        for (priority, pool), milli in self._held.items():
            if pool in shape.pools:
                held[priority] += milli
        priorities = sorted(held)
        return priorities, [0, *accumulate(held[priority] for priority in priorities)]


class FreeByPools:
    """The total free capacity of each set of pools: on nodes in service, whether in one piece or not."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._gpus: dict[object, int] = {}
        self._rest: dict[object, tuple[int, int]] = {}
        self._open: dict[object, Table] = {}  # nodes in service

    def lacks(self, shape: Shape, more: int = 0) -> bool:
        """Return whether the gang requests more GPUs than are free plus `more` milli-GPUs, or more CPU or memory."""
        free = self._gpus.get(shape.reach)
        if free is None:
            free = self._gpus[shape.reach] = self._free_gpus(shape)
        if shape.gpu_milli > free + more:
            return True
        if not shape.cpu and not shape.memory:
            return False
        rest = self._rest.get(shape.reach)
        if rest is None:
            rest = self._rest[shape.reach] = self._free_rest(shape)
        return shape.cpu > rest[0] or shape.memory > rest[1]

    def _free_gpus(self, shape: Shape) -> int:
        state = self.state
        if state.node_version or shape.ask.node_sets:  # cordoned nodes have capacity that no job can use
            return int(state.table[self._open_nodes(shape), c.FREE].sum())
        return sum(int(state.pools[pool, c.P_CAPACITY] - state.pools[pool, c.P_ALLOCATED]) for pool in shape.pools)

    def _free_rest(self, shape: Shape) -> tuple[int, int]:
        """Return the free CPU and memory; FOREVER for an amount that some node does not limit."""
        own = self.state.table[self._open_nodes(shape), c.CPU_FREE : c.MEMORY + 1]  # adjacent columns
        cpu, memory, most_cpu, most_memory = own.T
        return (
            FOREVER if (most_cpu >= FOREVER).any() else int(cpu.sum()),
            FOREVER if (most_memory >= FOREVER).any() else int(memory.sum()),
        )

    def _open_nodes(self, shape: Shape) -> Table:
        if shape.reach not in self._open:
            table = self.state.table
            rows: Table = self.state.shapes.admitting(shape, table[:, c.POOL]).nonzero()[0]
            self._open[shape.reach] = rows[table[rows, c.STATUS] == NodeStatus.IN_SERVICE]
        return self._open[shape.reach]
