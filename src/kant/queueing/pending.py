"""The pending queue: buckets of waiting jobs. A bucket sleeps while its first job is known to be unschedulable.

When a job cannot start, its scheduling key is unschedulable, and every bucket whose first job has the key sleeps. A
change that may make the job schedulable wakes them. Waking too many is always allowed: it costs time, but changes no
decision. So a cycle looks only at awake buckets, and a cluster in which no job can start costs nothing.

Sources: unschedulable pods and queueing hints of kube-scheduler, unfeasible scheduling keys of Armada, autoclusters of
HTCondor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kant.cluster.columns import (
    J_BASE,
    J_PREEMPTIBLE,
    J_PRIORITY,
    J_QUEUE,
    J_RETURNS,
    J_SHAPE,
    J_STARTED,
    J_USER,
    POOL,
    Table,
    longer,
)
from kant.cluster.over_budget import ALL_USERS, OverBudget, first_of
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.placement import NODE, Allocation
from kant.queueing import waiting as w
from kant.queueing.buckets import BucketKey, Buckets, Head
from kant.queueing.order import Order
from kant.queueing.ports import NOT_NOW, NotNow
from kant.queueing.requeue import BackOffs, Requeue
from kant.queueing.walk import Share, Walk
from kant.queueing.watch import ANY_START, ANYTHING, JOBS, LIVE, NODES, QUOTA, RIGHTS, Watch

LOWERED = 1 << 40
"""How much jobs beyond a soft budget are lowered in priority: more than the difference of any two priorities."""

MOST_UNUSED = 1024
"""How many unused buckets and keys may exist before all are renumbered."""


class PendingQueue(Buckets):
    """The waiting jobs of a `ClusterState`, kept in step with its changes.

    `bucket_of` maps queue and shape to the bucket of a job (None: no buckets). `preempts` says whether waiting jobs may
    evict running ones, `draws` whether the placement draws random numbers by job, and `fair` whether queues reclaim up
    to their fair shares. `may_fit` returns False for a shape that cannot be placed now.
    """

    def __init__(
        self, state: ClusterState, order: Order, requeue: Requeue, bucket_of: Callable[[int, int], BucketKey] | None,
        preempts: bool, draws: bool, fair: bool, may_fit: Callable[[Shape], bool],
    ) -> None:  # fmt: skip
        super().__init__(state, order, bucket_of, preempts, draws, fair)
        self.requeue = requeue
        self.may_fit = may_fit
        self.rounds = 0
        """How many rounds over the buckets have begun."""
        self._priorities: set[int] = set()  # the priorities seen, until there are two
        self.now = state.now
        self.arrived: list[int] = []
        """Rows that no cycle has checked for rejection yet."""
        self.leaving: set[int] = set()
        """Rows that the current plan rejects, or has restarted after the loss of a node."""
        self.may_try = False
        """Whether the first job of some bucket may be tried now, or after a check whether it may fit."""
        self.doubts = False  # whether a key may be STIRRED or UNPROVEN
        self.retry_until = -1
        """The latest time (µs) at which a verdict may change although nothing else happens; -1: none."""
        self.wakes_on = 0
        """The changes that wake a sleeping bucket, or have woken one since no bucket slept, as bits."""
        self._kept = False  # whether an entry of `heads` may say that a job waits for quota
        self.back_offs = BackOffs(state, requeue)
        self._base_runs: dict[int, bool] = {}  # for each base job that the plan starts or stops: whether it runs then
        self.released: list[int] = []
        """Waiting burst replicas whose base job the current plan has started, and that were not tried since."""
        self.opened = False  # whether the plan has freed capacity since this round began
        self.watch = Watch(state)
        self._queue_config = state.quota_usage.queue_config
        self._asked_anew = state.asked_anew
        self._over: OverBudget | None = None
        self.lowers = False
        """Whether a queue or a user is over a soft budget; its jobs then rank behind all others."""

    # --- following the state ---------------------------------------------------------------------------------

    def refresh(self, now: int, moved: list[int] | None) -> None:
        """Follow the changes since the last cycle, and wake the buckets that may start because of them.

        `moved` has the rows that arrived, left, started or stopped, each once; None if unknown.
        """
        if self.state.books and self._turns(now):
            moved = None
        usage = self.state.quota_usage
        if usage.budgets is not None and (over := usage.over_budget(now)) != self._over:
            self._over, self.lowers, moved = over, over is not None and bool(over.soft), None
        self.now, changed = now, 0
        if self._asked_anew != self.state.asked_anew:
            self._asked_anew, self.arrived = self.state.asked_anew, list(self.state.pending)
            self.wake_all()
        self.leaving.clear()
        if self.released:
            self.released.clear()
        self._base_runs.clear()
        reconfigured = self.state.quota_usage.queue_config is not self._queue_config
        if moved or moved is None or reconfigured or self.order.moving:
            changed = self._follow(moved)
        if self.back_offs.ends and self.back_offs.ends[0][0] <= now:
            self._push([row for row in self.back_offs.over(now) if self._base_job_runs(row)])
        if self.verdicts.item(0, w.V_ROW):
            changed = self.watch.changes(changed)
            done = w.follow_pools(
                self.entries, self.buckets, self.verdicts, self.ready, self.state.pools, self.watch.freed, changed, now
            )
            if done:
                if self._kept:
                    self._heads.clear()
                self.may_try = True
                self.doubts = self.doubts or done & w.DOUBTS > 0

    def _turns(self, now: int) -> bool:
        """Return whether reservations were added, removed, began or ended since the last cycle: all buckets then wake.

        Once there was a reservation, bucket keys with a shape also have the time limit, which decides what conflicts.
        """
        state, since = self.state, self.now
        edges = (edge for booking in state.bookings.values() for edge in (booking.start, booking.end))
        if state.booking_version == self._booking_version and not any(since < edge <= now for edge in edges):
            return False
        self._booking_version = state.booking_version
        self._rekey()
        return True

    def _follow(self, moved: list[int] | None) -> int:
        """Follow the jobs that arrived, left, started or stopped. Returns which of these changes occurred, as bits."""
        state = self.state
        mixes = False
        if self.keeps_priority and not self.mixed:
            rows = list(state.live) if moved is None else [row for row in moved if row in state.live]
            self._priorities.update(state.jobs[rows, J_PRIORITY].tolist())
            mixes = len(self._priorities) > 1
        pending, queue_config, changed = state.pending, state.quota_usage.queue_config, 0
        if moved is None or queue_config is not self._queue_config:  # which jobs can never start may have changed
            self._queue_config, moved = queue_config, None
            came = list(pending)
            self.wake_all()
        else:
            came, known = [row for row in moved if row in pending], len(self.places)
            waited = [row for row in moved if row < known and self.places.item(row, w.P_ENTRY)]
            if waited:
                self._drop(waited)
            if moved:
                ran = len(came) < len(moved) or max([state.jobs[row, J_STARTED] for row in came]) >= 0
                changed = LIVE | JOBS if ran else LIVE
        if came or self.arrived:
            if came and max(came) >= len(self.places):
                self.places = longer(self.places, max(came) + 1)
            for row in came:
                self.places[row, w.P_RECORDED] = 0
            self.arrived = sorted({*came, *[row for row in self.arrived if row in pending]})
        if state.burst_replicas:
            came = list(dict.fromkeys([*came, *self._follow_replicas(moved)]))
        if mixes:  # from now on jobs may preempt those that passed them, so each bucket gets its own key
            self.mixed = self.preempts = True
            self.watch = Watch(state, True)
            self.wake_all()
        otherwise = moved is None or mixes or self._by_user != state.quota_usage.limits_users
        if otherwise:
            self._by_user = state.quota_usage.limits_users
            self._rekey()
        if max(len(self.keys), len(self._known)) > 4 * len(pending) + MOST_UNUSED:
            self._renumber()
            otherwise = True
        if otherwise or self.order.moving:
            self._empty()
            came = list(pending)
        if came and self.bucket_of is not None:
            if state.burst_replicas or max([state.jobs[row, J_RETURNS] for row in came]):
                came = [row for row in came if self.may_be_tried(row)]
            self._push(came)
        return changed

    def _follow_replicas(self, moved: list[int] | None) -> list[int]:
        """Return the burst replicas whose base job has started among these changed rows."""
        state, found = self.state, list[int]()
        if moved is None:
            return found
        if self.preempts and moved and max(state.jobs[moved, J_BASE].tolist()) >= 0:
            self.wake_all()  # a burst replica that runs keeps its base job from being evicted
        for base in moved:
            replicas = self._waiting_replicas(base)
            if base in state.running:
                found += replicas
            elif replicas:
                self._drop(replicas)
                if base not in state.live:
                    self.arrived = sorted({*self.arrived, *replicas})  # these replicas can never run
        return found

    # --- back-off and burst replicas -------------------------------------------------------------------------

    def may_be_tried(self, row: int) -> bool:
        """Return whether neither a back-off nor a stopped base job keeps the row out of its bucket."""
        if self.state.jobs[row, J_RETURNS] and self.back_offs.waits(row, self.now):
            return False
        return not self.state.burst_replicas or self._base_job_runs(row)

    def _waiting_replicas(self, base: int) -> list[int]:
        return [row for row in self.state.burst_replicas.get(base, ()) if row in self.state.pending]

    def take_released(self) -> list[int]:
        """Return the released burst replicas that may be tried now, and clear the list."""
        rows = [row for row in self.released if row not in self.leaving and self.may_be_tried(row)]
        self.released.clear()
        return rows

    def _base_job_runs(self, row: int) -> bool:
        """Return whether the base job of a burst replica runs after the plan; True for other jobs."""
        base = int(self.state.jobs[row, J_BASE]) if self.state.burst_replicas else -1
        return base < 0 or self._base_runs.get(base, base in self.state.running)

    # --- buckets ---------------------------------------------------------------------------------------------

    def of_one_priority(self, priorities: Table) -> int:
        """Return how many of these priorities, from the first on, equal the only priority seen so far in the run."""
        if not self._priorities and len(priorities):
            self._priorities.add(int(priorities[0]))
        others = np.flatnonzero(priorities != min(self._priorities, default=0))
        return int(others[0]) if len(others) else len(priorities)

    def _push(self, rows: list[int]) -> None:
        """Put rows in their buckets; a bucket with a new first job may be tried."""
        if self.bucket_of is None or not rows:
            return
        jobs, priority = self.state.jobs, 0
        if max(rows) >= len(self.places) or self.entries.item(0, w.E_ROW) + len(rows) >= len(self.entries):
            self.reserve(max(rows) + 1, len(rows))
        keys = self.order.keys(jobs, np.array(rows, dtype=np.int64), self.state.now)
        if keys.dtype != np.int64:
            keys = w.as_integers(keys)
        by_priority, wakes, lowers = self.order.by_priority, self.order.outgrown, self.lowers
        for row, key in zip(rows, keys.tolist(), strict=True):
            if self.places.item(row, w.P_ENTRY):
                continue
            job = jobs[row].tolist()
            by = (
                job[J_QUEUE], job[J_SHAPE], job[J_USER] if self._by_user else -1, job[J_PRIORITY], job[J_BASE],
                job[J_PREEMPTIBLE], self.state.live[row].limit if self._booking_version else -1,
            )  # fmt: skip
            bucket, known = self._where.get(by) or self.numbers(*by)
            if lowers:
                priority = -self.priority(row, by_priority)
            elif by_priority:
                priority = -job[J_PRIORITY]
            if w.push_one(
                self.entries, self.places, self.buckets, self.verdicts, row, priority, key, job[J_SHAPE], known, bucket,
                wakes,
            ):  # fmt: skip
                self._heads.clear()
                self.may_try = True

    # --- soft budgets ----------------------------------------------------------------------------------------

    def is_lowered(self, queue: int, user: int = ALL_USERS) -> bool:
        """Return whether a queue, or a user of it, is over a soft budget."""
        usage = self.state.quota_usage
        if self._over is None or usage.tree is None or usage.node_of[queue] < 0:
            return False
        return first_of(self._over.soft, usage.tree, usage.node_of[queue], user) is not None

    def priority(self, row: int, by_priority: bool = True) -> int:
        """Return the priority by which a waiting job is ranked; lowered below all others if over a soft budget."""
        queue, user, priority = self.state.jobs[row, [J_QUEUE, J_USER, J_PRIORITY]].tolist()
        return (priority if by_priority else 0) - (LOWERED if self.is_lowered(queue, user) else 0)

    def _drop(self, rows: list[int]) -> None:
        """Take rows out of their buckets; a bucket with a new first job may be tried."""
        for row in rows:
            if row < len(self.places) and w.drop(self.entries, self.places, self.buckets, row):
                self._heads.clear()
                self.may_try = True

    def advanced(self, now: int, may_try: int, doubts: int, wakes_on: int, retry_until: int, by_quota: bool) -> None:
        """Record that compiled code has followed the state up to `now` and walked the buckets (`sim/advance.py`).

        `by_quota`: jobs may wait for their quotas.
        """
        self.now, self.may_try, self.doubts, self.wakes_on = now, may_try > 0, doubts > 0, wakes_on
        self.retry_until = retry_until
        self._kept = self._kept or by_quota
        self._heads.clear()

    # --- sleep and wake --------------------------------------------------------------------------------------

    def sleep(self, bucket: int, shape: Shape, failed: NotNow = NOT_NOW, by_quota: bool = False) -> None:
        """Mark the key of a bucket's first job, which cannot start, as unschedulable until a change may help it.

        `failed` says why eviction does not help, and until when that holds. `by_quota`: the job waits for its quota or
        its queue, and not for capacity.
        """
        until, definitive, no_candidates = failed
        if not self.verdicts.item(0, w.V_ROW):
            self.watch, self.wakes_on = Watch(self.state, self.sees & RIGHTS > 0), 0
        self.wakes_on |= w.learn_one(
            self.entries, self.verdicts, self.buckets.item(bucket, w.B_TOP), shape.pool_bits,
            self.sees | NODES if shape.order_dependent else self.sees, until, definitive, no_candidates, by_quota,
            self.now,
        )  # fmt: skip
        if by_quota:
            self._kept = True
            self._heads.clear()
        if until > self.retry_until:
            self.retry_until = until
        if not definitive:
            self.doubts = self.may_try = True

    def wake_all(self) -> None:
        """Wake all unschedulable keys: every bucket may be tried."""
        self._wake(ANYTHING)

    def _wake(self, changed: int, pools: int = 0, stirs: bool = False) -> None:
        """Wake the keys whose jobs may start after these changes, or because capacity is freed in these pools.

        During a round, woken buckets are tried if their turn is still to come. With `stirs`, keys that only freed
        capacity may help become STIRRED instead: they wake if their jobs may fit.
        """
        done = w.wake_some(self.entries, self.buckets, self.verdicts, self.ready, changed, pools, stirs, self.now)
        if done:
            if self._kept:
                self._heads.clear()
            self.may_try = True
            self.doubts = self.doubts or done & w.DOUBTS > 0

    def wakes_at(self, heads: list[Head] | None = None) -> int:
        """Return when (µs) time alone may first let one of `heads` start, by default all first jobs; -1: never."""
        buckets = [head[2] for head in (self.heads() if heads is None else heads)]
        return int(w.wakes_first(self.entries, self.verdicts, self.buckets[buckets, w.B_TOP], self.now))

    # --- one cycle -------------------------------------------------------------------------------------------

    def walk(self, share: Share | None = None) -> Iterator[tuple[int, Shape, int]]:
        """Yield the first jobs of buckets that may start now (row, shape, bucket), best first; by `share`, if given.

        The caller calls `took` or `sleep` before it asks for the next one. If the plan frees capacity meanwhile,
        another round over the woken buckets follows, in order.
        """
        return Walk(self, share).jobs() if self.may_try or self.released else iter(())

    def push_released(self) -> None:
        """Put the released burst replicas that may be tried now in their buckets."""
        self._push(self.take_released())

    def took(self, bucket: int) -> None:
        """Remove the first job of a bucket, which starts or leaves. If its start is refused, an event re-queues it."""
        self._heads.clear()
        w.drop(self.entries, self.places, self.buckets, self.entries.item(self.buckets.item(bucket, w.B_TOP), w.E_ROW))

    def leave(self, row: int) -> None:
        """Remove a job that the plan rejects, or restarts after the loss of a node: it is not tried again."""
        self.leaving.add(row)
        if self.back_offs.ends:
            self.back_offs.forget(row)
        self._drop([row])

    def starts(self, row: int) -> None:
        """Follow the start of a job by the plan. Its burst replicas may be tried in the same cycle."""
        state = self.state
        self._wake(ANY_START)
        if state.burst_replicas:
            if self.preempts and state.jobs[row, J_BASE] >= 0:
                self.wake_all()
            if row in state.burst_replicas:
                self._base_runs[row] = True
                self.released += self._waiting_replicas(row)
                self.opened = True

    def stops(self, row: int) -> None:
        """Update the queue after a job was stopped: others may fit on its devices, and its replicas are not tried."""
        self.frees(self.state.running[row])
        if row in self.state.burst_replicas:
            self._base_runs[row] = False
            self._drop(self._waiting_replicas(row))
        if self.preempts and self.state.jobs[row, J_BASE] >= 0:
            self.wake_all()

    def frees(self, pieces: Allocation) -> None:
        """Wake the keys that may fit on pieces that the plan frees."""
        self.opened = True
        pools = 0
        for pool in set(self.state.table[pieces[:, NODE], POOL].tolist()):
            pools |= 1 << pool
        self._wake(ANY_START | QUOTA, pools)
