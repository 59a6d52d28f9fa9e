"""The pending queue: buckets of jobs that wait. A bucket sleeps while its first job is known not to start.

Jobs that the discipline keeps in order share a bucket, and only the first of a bucket is tried. Strict FIFO has one
bucket for each queue. Best-effort FIFO has one for each queue and shape: what does not fit for one job does not fit for
another with equal requests.

Jobs that no rule tells apart have one scheduling key, whatever their bucket. When a job cannot start, its key is
unschedulable, and every bucket whose first job has the key sleeps. What may change the answer wakes them. Waking too
much is always allowed: it costs time and starts nobody else. So a cycle looks only at buckets that are awake, and a
cluster in which nothing can start costs nothing.

Sources: unschedulable pods and queueing hints of kube-scheduler, unfeasible scheduling keys of Armada, autoclusters of
HTCondor.

Long: sleeping, waking and walking are one invariant, which reads best in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from kant.cluster.columns import (
    J_BASE,
    J_LIMIT,
    J_PREEMPTIBLE,
    J_PRIORITY,
    J_QUEUE,
    J_RETURNS,
    J_SHAPE,
    J_STARTED,
    J_USER,
    POOL,
)
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.placement import NODE, Allocation
from kant.queueing.bucket import (
    ANY_START,
    ANYTHING,
    ASLEEP,
    AWAKE,
    JOBS,
    LIVE,
    NODES,
    QUOTA,
    RIGHTS,
    STIRRED,
    UNPROVEN,
    Bucket,
    BucketKey,
    Entry,
    SchedulingKey,
    Verdict,
)
from kant.queueing.late_heads import LateHeads
from kant.queueing.order import Order
from kant.queueing.ports import NOT_NOW, NotNow
from kant.queueing.requeue import BackOffs, Requeue
from kant.queueing.watch import Watch

Share = Callable[[int], tuple[float, ...]]
"""What a queue has had of its share, so far in this cycle."""


class PendingQueue:
    """The waiting jobs of a `ClusterState`, following what changes there.

    `bucket_of` says from queue and shape in which bucket a job waits (None: jobs are not sorted). `preempts` says
    whether waiting jobs may evict running ones, `draws` whether the placement depends on the job by chance, and `fair`
    whether queues reclaim up to their fair shares. `may_fit` is False for a shape that certainly finds no place now.
    """

    def __init__(
        self,
        state: ClusterState,
        order: Order,
        requeue: Requeue,
        bucket_of: Callable[[int, int], BucketKey] | None,
        preempts: bool = False,
        draws: bool = False,
        fair: bool = False,
        may_fit: Callable[[Shape], bool] = lambda shape: True,
    ) -> None:
        self.state = state
        self.order = order
        self.requeue = requeue
        self.bucket_of = bucket_of
        self.preempts = preempts
        self.draws = draws
        self.fair = fair
        self.may_fit = may_fit
        self.keeps_priority = False
        """Whether the profile keeps jobs from passing those of higher priority: only then priorities are looked at."""
        self.mixed = False
        """Whether jobs of several priorities have been seen, and priority is kept."""
        self.rounds = 0
        """How often the buckets have been gone through from the first one on."""
        self._priorities: set[int] = set()  # seen so far, until there are two
        self.late_heads = LateHeads(state, order.outgrown)
        self.now = state.now
        self.buckets: dict[BucketKey, Bucket] = {}
        self.arrived: list[int] = []
        """Rows that no cycle has seen yet."""
        self.leaving: set[int] = set()
        """Rows that the plan under way rejects, or has started in place of lost nodes."""
        self.held: set[int] = set()
        """Rows whose hold has been said since they came to wait."""
        self.may_try = False
        """Whether the first job of a bucket may be tried, or may be once it is asked whether it fits."""
        self.verdicts: dict[SchedulingKey, Verdict] = {}
        """What is known of the scheduling keys that cannot start, or could not."""
        self._doubts = False  # whether one of them may be STIRRED or UNPROVEN
        self.retry_until = -1
        """The last time at which a verdict may change by itself, µs."""
        self.wakes_on = 0
        """What wakes any of the sleeping buckets, or has woken one of them since there was none."""
        self._place: dict[int, Bucket] = {}  # in which bucket a row is
        self._keys: dict[tuple[int, int, int], BucketKey] = {}
        self._heads: dict[bool, list[tuple[Entry, Bucket]]] = {}
        self.back_offs = BackOffs(state, requeue)
        self._base_runs: dict[int, bool] = {}  # whether a base job runs once the plan is carried out
        self.released: list[int] = []
        """Burst replicas that wait, whose base job the plan under way has started, and that were not tried since."""
        self._opened = False  # the plan has freed capacity since the round under way began
        self._ready: list[tuple[tuple[float, ...], Entry, Bucket]] | None = None  # of the round under way
        self._aside: Bucket | None = None  # the bucket of the last job of the walk, if that stepped aside
        self._watch = Watch(state)
        self._queue_config = state.quota_usage.queue_config
        self._by_user = state.quota_usage.limits_users
        self._booking_version = 0
        self._asked_anew = state.asked_anew

    # --- following the state ---------------------------------------------------------------------------------

    def refresh(self, now: int, moved: list[int] | None) -> None:
        """Take in what has changed since the last cycle, and wake what it may let start.

        `moved` has the rows that came, left, started or stopped, each once; None where nobody knows.
        """
        if self.state.books and self._turns(now):
            moved = None
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
        if self.verdicts:
            changed, pools = self._watch.changes(changed)
            self._wake(changed, pools, stirs=True)

    def _turns(self, now: int) -> bool:
        """Whether reservations came, went, began or ended since the last look: then anything may be otherwise.

        From the first of them on a bucket that knows shapes also knows limits, for these decide what is in whose way.
        """
        state, since = self.state, self.now
        edges = (edge for booking in state.bookings.values() for edge in (booking.start, booking.end))
        if state.booking_version == self._booking_version and not any(since < edge <= now for edge in edges):
            return False
        self._booking_version = state.booking_version
        self._keys.clear()
        return True

    def _follow(self, moved: list[int] | None) -> int:
        """Take in the jobs that came, left, started or stopped. Returns which of these changes there were."""
        state = self.state
        mixes = False
        if self.keeps_priority and not self.mixed:
            rows = list(state.live) if moved is None else [row for row in moved if row in state.live]
            self._priorities.update(state.jobs[rows, J_PRIORITY].tolist())
            mixes = len(self._priorities) > 1
        pending, queue_config, changed = state.pending, state.quota_usage.queue_config, 0
        if moved is None or queue_config is not self._queue_config:  # who can never start may be another job now
            self._queue_config, moved = queue_config, None
            came = list(pending)
            self.wake_all()
        else:
            came = []
            for row in moved:
                if row in pending:
                    came.append(row)
                if row in self._place:
                    self._drop([row for row in moved if row in self._place])
            if moved and self.verdicts:
                ran = len(came) < len(moved) or max([state.jobs[row, J_STARTED] for row in came]) >= 0
                changed = LIVE | JOBS if ran else LIVE
        if came or self.arrived:
            self.held.difference_update(came)
            self.arrived = sorted({*came, *[row for row in self.arrived if row in pending]})
        if state.burst_replicas:
            came = list(dict.fromkeys([*came, *self._follow_replicas(moved)]))
        if mixes:  # from now on jobs may preempt those that passed them, so each bucket has a key of its own
            self.mixed = self.preempts = True
            self.wake_all()
        if moved is None or mixes or self.order.moving or self._by_user != state.quota_usage.limits_users:
            self._by_user = state.quota_usage.limits_users
            self._empty()
            came = list(pending)
        if came and self.bucket_of is not None:
            if state.burst_replicas or max([state.jobs[row, J_RETURNS] for row in came]):
                came = [row for row in came if self.may_be_tried(row)]
            self._push(came)
        return changed

    def _follow_replicas(self, moved: list[int] | None) -> list[int]:
        """Burst replicas whose base job has started, now that these rows have changed."""
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
                    self.arrived = sorted({*self.arrived, *replicas})  # they can never run
        return found

    # --- back-off and burst replicas -------------------------------------------------------------------------

    def may_be_tried(self, row: int) -> bool:
        """Whether neither a back-off nor a base job that does not run keeps the row out of its bucket."""
        if self.state.jobs[row, J_RETURNS] and self.back_offs.waits(row, self.now):
            return False
        return not self.state.burst_replicas or self._base_job_runs(row)

    def _waiting_replicas(self, base: int) -> list[int]:
        return [row for row in self.state.burst_replicas.get(base, ()) if row in self.state.pending]

    def take_released(self) -> list[int]:
        """The released burst replicas that may be tried now. They are released no more."""
        rows = [row for row in self.released if row not in self.leaving and self.may_be_tried(row)]
        self.released.clear()
        return rows

    def _base_job_runs(self, row: int) -> bool:
        """Whether the base job of a burst replica runs once the plan is carried out; True for other jobs."""
        base = int(self.state.jobs[row, J_BASE]) if self.state.burst_replicas else -1
        return base < 0 or self._base_runs.get(base, base in self.state.running)

    # --- buckets ---------------------------------------------------------------------------------------------

    def _empty(self) -> None:
        self.buckets.clear()
        self._place.clear()
        self._heads.clear()

    def _push(self, rows: list[int]) -> None:
        """Put rows in their buckets; a bucket with a new first job wakes."""
        place = self._place
        if not place.keys().isdisjoint(rows):
            rows = [row for row in rows if row not in place]
        if self.bucket_of is None or not rows:
            return
        jobs = self.state.jobs
        keys = self.order.keys(jobs, np.array(rows, dtype=np.int64), self.state.now).tolist()
        by_priority = self.order.by_priority
        plain = not (self.preempts or self.draws or self._booking_version) and self.state.quota_usage.tree is None
        for row, key in zip(rows, keys, strict=True):
            job = jobs[row].tolist()
            queue, shape, user, priority, base = job[J_QUEUE], job[J_SHAPE], job[J_USER], job[J_PRIORITY], job[J_BASE]
            bucket_key = self._keys.get((queue, shape, user if self._by_user else -1))
            if bucket_key is None:
                bucket_key = self._bucket_key(queue, shape, user)
            if len(bucket_key) > 1 and (self._booking_version or (self.keeps_priority and not job[J_PREEMPTIBLE])):
                bucket_key = self._told_apart(bucket_key, job[J_LIMIT], job[J_PREEMPTIBLE])
            bucket = self.buckets.get(bucket_key)
            if bucket is None:
                bucket = self.buckets[bucket_key] = Bucket(bucket_key, [])
            entry = (
                -priority if by_priority else 0,
                key,
                row,
                shape,
                shape if plain else self._scheduling_key(bucket_key, shape, priority, base),
            )
            heappush(bucket.heap, entry)
            place[row] = bucket
            if bucket.heap[0] is entry:
                self._heads.clear()
                self.may_try = True
                if self.order.outgrown and entry[4] in self.verdicts:  # it may be the best: then it is told so
                    self.verdicts[entry[4]].state = AWAKE

    def _bucket_key(self, queue: int, shape: int, user: int) -> BucketKey:
        """The bucket of a job. Where users are limited, what holds for one of them does not hold for another."""
        assert self.bucket_of is not None
        key = self.bucket_of(queue, shape)
        if self.order.shares and key[:1] != (queue,):
            key = (queue, *key)
        key = (*key, user) if len(key) > 1 and self._by_user else key
        self._keys[queue, shape, user if self._by_user else -1] = key
        return key

    def _told_apart(self, key: BucketKey, limit: int, preemptible: int) -> BucketKey:
        """The bucket key with what else decides who may pass: beside bookings limits, and whether a job may be evicted.

        Where priority is kept, a job that cannot be taken back is held for longer than its equals.
        """
        if self._booking_version:
            return (*key, limit, preemptible)
        return key if preemptible or not self.keeps_priority else (*key, 0)

    def _scheduling_key(self, bucket: BucketKey, shape: int, priority: int, base: int) -> SchedulingKey:
        """What decides whether a job can start.

        Where there are quotas, or priorities to keep, only its bucket is known, and gangs of several groups that a
        placement draws fare differently. Where jobs may be evicted, the priority counts, and the base job, which its
        replicas do not evict.
        """
        if (
            self._booking_version
            or self.mixed
            or self.state.quota_usage.tree is not None
            or (self.draws and len(self.state.shapes.shapes[shape].parts) > 1)
        ):
            return (-1, *bucket)
        return (shape, priority, base) if self.preempts else shape

    def _drop(self, rows: list[int]) -> None:
        """Take rows out of their buckets; a bucket with another first job wakes."""
        gone: dict[BucketKey, set[int]] = {}
        for row in rows:
            bucket = self._place.pop(row, None)
            if bucket is not None:
                gone.setdefault(bucket.key, set()).add(row)
        for key, rows_of in gone.items():
            bucket = self.buckets[key]
            first = bucket.heap[0]
            bucket.heap = [entry for entry in bucket.heap if entry[2] not in rows_of]
            heapify(bucket.heap)
            if not bucket.heap or bucket.heap[0] is not first:
                self._heads.clear()
                self.may_try = True
            if not bucket.heap:
                del self.buckets[key]

    def heads(self, of_pools: bool = False, large: int = 0) -> list[tuple[Entry, Bucket]]:
        """The first job of every bucket, best first; or the best one alone of those that compete for the same pools,
        and the best one of those from `large` milli-GPUs on."""
        found = self._heads.get(of_pools)
        if found is None:
            heads: Iterable[tuple[Entry, Bucket]] = [(bucket.heap[0], bucket) for bucket in self.buckets.values()]
            if of_pools:
                shapes, best = self.state.shapes.shapes, dict[object, tuple[Entry, Bucket]]()
                for head in heads:
                    shape = shapes[head[0][3]]
                    lane = *shape.reach, shape.gpu_milli >= large
                    if lane not in best or head[0] < best[lane][0]:
                        best[lane] = head
                heads = best.values()
            found = self._heads[of_pools] = sorted(heads)
        return found

    def first_jobs(self) -> list[Entry]:
        """The first job of every bucket, best first; of buckets that only bookings tell apart, the best of all.

        So whom these jobs hold does not depend on whether somebody has booked anything.
        """
        if not self._booking_version:
            return sorted([bucket.heap[0] for bucket in self.buckets.values()])
        best: dict[BucketKey, Entry] = {}
        for key, bucket in self.buckets.items():
            alike = key if len(key) < 2 else key[:-2] if key[-1] else (*key[:-2], 0)
            if alike not in best or bucket.heap[0] < best[alike]:
                best[alike] = bucket.heap[0]
        return sorted(best.values())

    def head_before(self, row: int) -> int | None:
        """The row of the job that keeps this one from being tried: the first of its bucket; None where it is first."""
        if self.bucket_of is None:
            return None
        queue, shape, user = self.state.jobs[row, [J_QUEUE, J_SHAPE, J_USER]].tolist()
        key = self._bucket_key(queue, shape, user)
        if len(key) > 1:
            key = self._told_apart(key, *self.state.jobs[row, [J_LIMIT, J_PREEMPTIBLE]].tolist())
        bucket = self.buckets.get(key)
        return bucket.heap[0][2] if bucket is not None and bucket.heap[0][2] != row else None

    # --- sleep and wake --------------------------------------------------------------------------------------

    def sleep(self, bucket: Bucket, shape: Shape, failed: NotNow = NOT_NOW, by_quota: bool = False) -> None:
        """The first job of a bucket cannot start; its key is unschedulable until something may change that.

        `failed` says what eviction could not do for it, and how long that is known. With `by_quota` its quota or its
        queue keeps it, and no running job does.
        """
        until, definitive, nobody = failed
        tree = self.state.quota_usage.tree is not None
        wakes_on = NODES if shape.order_dependent else 0
        if tree:
            wakes_on |= QUOTA
        if nobody:
            wakes_on |= RIGHTS if self.preempts else 0
        elif until >= 0 or (tree and self.preempts):
            wakes_on |= LIVE if until >= 0 or self.fair else JOBS
        if not self.verdicts:
            self._watch, self.wakes_on = Watch(self.state), 0
        if wakes_on & RIGHTS and not self._watch.sees_rights:
            self._watch.rights()
        self.wakes_on |= wakes_on
        head = bucket.heap[0]
        key = head[4]
        alone = isinstance(key, tuple) and key[0] < 0
        pools = 0 if nobody and by_quota else shape.pool_bits
        state = ASLEEP if definitive else UNPROVEN
        self.verdicts[key] = Verdict(state, head[2] if alone else -1, shape, pools, wakes_on, until, nobody, by_quota)
        self.retry_until = max(self.retry_until, until)
        if not definitive:
            self._doubts = self.may_try = True

    def wake_all(self) -> None:
        """Forget what is known to be unschedulable: every bucket may be tried."""
        self._wake(ANYTHING)

    def _wake(self, changed: int, pools: int = 0, stirs: bool = False) -> None:
        """Wake what one of these changes, or capacity that comes free in these pools, may let start.

        In a round buckets have their turn if it is still to come. With `stirs` keys that only capacity may help are
        stirred: they wake if they may fit.
        """
        ready, now, woke = self._ready, self.now, set[SchedulingKey]()
        for key, one in list(self.verdicts.items()):
            if one.state == AWAKE:
                if one.until <= now:
                    del self.verdicts[key]
                continue
            helps = one.wakes_on & changed
            if changed == ANYTHING or helps & ~NODES or 0 <= one.until <= now:
                one.state = AWAKE
            elif one.pools & pools or helps:
                one.state = STIRRED if stirs and one.nobody and one.state != UNPROVEN else AWAKE
            else:
                continue
            self.may_try = True
            if one.state:
                self._doubts = True
                continue
            woke.add(key)
            if one.until <= now:
                del self.verdicts[key]
        for bucket in self.buckets.values() if woke and ready else ():
            head = bucket.heap[0]
            if head[4] in woke and ready and head > ready[0][1]:
                heappush(ready, ((), head, bucket))

    def _stir(self) -> None:
        """What was known for the last cycle only is tried again. Stirred keys wake that may fit, or whose best job has
        not been told that it waits."""
        self._doubts = False
        for key, one in [(key, one) for key, one in self.verdicts.items() if one.state in (UNPROVEN, STIRRED)]:
            if one.state == STIRRED and not self.may_fit(one.shape):
                best = min([b.heap[0] for b in self.buckets.values() if b.heap[0][4] == key], default=None)
                if best is None or (best[2] in self.held and not self.order.shares):
                    one.state = ASLEEP
                    continue
            one.state = AWAKE
            if one.until <= self.now:
                del self.verdicts[key]

    def wakes_at(self, heads: Iterable[Entry] | None = None) -> int:
        """When the first of these first jobs, or of all, may start by itself what it could not when it was tried, µs;
        -1 for never."""
        first = -1
        for head in [bucket.heap[0] for bucket in self.buckets.values()] if heads is None else heads:
            one = self.verdicts.get(head[4])
            if one is not None and one.until > self.now and one.row in (-1, head[2]) and not 0 <= first <= one.until:
                first = one.until
        return first

    # --- one cycle -------------------------------------------------------------------------------------------

    def walk(self, share: Share | None = None) -> Iterator[tuple[int, Shape, Bucket]]:
        """Each first job that may start now: its row, its shape and its bucket; best first, by `share` of its queue.

        The caller calls `took`, `sleep` or `step_aside` before it asks for the next one. Where the plan frees capacity
        on the way, the buckets that this wakes are gone through as well, in order.
        """
        if not (self.may_try or self.released):
            return
        if self._doubts:
            self._stir()
        verdicts, shapes, late = self.verdicts, self.state.shapes.shapes, 0 if share is None else ANY_START
        while True:
            self.may_try = self._opened = False
            self.rounds += 1
            if self.released:
                self._push(self.take_released())
            # The buckets that are awake; by share also those that a start may wake: they keep their turn.
            buckets = [
                bucket
                for bucket in self.buckets.values()
                if (known := verdicts.get(bucket.heap[0][4])) is None
                or not known.state
                or known.row not in (-1, bucket.heap[0][2])
                or known.wakes_on & late
            ]
            ready: list[tuple[tuple[float, ...], Entry, Bucket]]
            ready = [(() if share is None else share(b.key[0]), b.heap[0], b) for b in buckets]
            heapify(ready)
            self._ready, self._aside = ready if share is None else None, None
            try:
                while ready and not self._opened:
                    had, head, bucket = ready[0]
                    first = bucket.heap[0] if bucket.heap else None
                    known = verdicts.get(head[4])
                    if first is None:
                        heappop(ready)
                    elif first is not head:
                        heapreplace(ready, (had if share is None else share(bucket.key[0]), first, bucket))
                    elif bucket is self._aside or (known is not None and known.state and known.row in (-1, head[2])):
                        heappop(ready)
                    elif share is not None and (has := share(bucket.key[0])) > had:  # others may come before it now
                        heapreplace(ready, (has, head, bucket))
                    else:
                        yield head[2], shapes[head[3]], bucket
            finally:
                self._ready, self.may_try = None, self.may_try or bool(ready)
            if not self._opened:
                return

    def step_aside(self, bucket: Bucket) -> None:
        """The first job of a bucket is not tried in this round. Its bucket stays awake: the next cycle asks again."""
        self._aside, self.may_try = bucket, True

    def took(self, bucket: Bucket) -> None:
        """The first job of a bucket starts or leaves. A driver that refuses the start brings it back by an event."""
        heap = bucket.heap
        self._heads.clear()
        del self._place[heappop(heap)[2]]
        if not heap:
            del self.buckets[bucket.key]

    def leave(self, row: int) -> None:
        """The plan rejects a job, or starts it in place of lost nodes: it is not tried any more."""
        self.leaving.add(row)
        if self.back_offs.ends:
            self.back_offs.forget(row)
        if row in self._place:
            self._drop([row])

    def starts(self, row: int) -> None:
        """The plan starts a job. Its burst replicas may be tried in the same cycle."""
        state = self.state
        if self.verdicts:
            self._wake(ANY_START)
        if state.burst_replicas:
            if self.preempts and state.jobs[row, J_BASE] >= 0:
                self.wake_all()
            if row in state.burst_replicas:
                self._base_runs[row] = True
                self.released += self._waiting_replicas(row)
                self._opened = True

    def stops(self, row: int) -> None:
        """The plan stops a running job. Others may fit where it was; its burst replicas may not be tried any more."""
        self.frees(self.state.running[row])
        if row in self.state.burst_replicas:
            self._base_runs[row] = False
            self._drop(self._waiting_replicas(row))
        if self.preempts and self.state.jobs[row, J_BASE] >= 0:
            self.wake_all()

    def frees(self, pieces: Allocation) -> None:
        """The plan frees these pieces: others may fit there."""
        self._opened = True
        if self.verdicts:
            pools = 0
            for pool in set(self.state.table[pieces[:, NODE], POOL].tolist()):
                pools |= 1 << pool
            self._wake(ANY_START | QUOTA, pools)
