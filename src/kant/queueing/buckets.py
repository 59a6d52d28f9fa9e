"""Buckets of waiting jobs: which bucket and which scheduling key a job has, and the tables of both.

Jobs that may not pass one another share a bucket, and only the first of a bucket is tried. Strict FIFO has a bucket for
each queue. Best-effort FIFO has a bucket for each queue and shape: if one job does not fit, another with equal requests
does not fit either. Jobs that no rule distinguishes have the same scheduling key, whatever their bucket.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_QUEUE, J_SHAPE, J_USER, longer
from kant.cluster.state import ClusterState
from kant.model.units import FOREVER
from kant.queueing import waiting as w
from kant.queueing.order import Order
from kant.queueing.watch import JOBS, LIVE, QUOTA, RIGHTS

BucketKey = tuple[int, ...]
"""The key of a bucket: the queue; the shape, if jobs of other shapes may pass; the user, if users have limits."""

SchedulingKey = int | tuple[int, ...]
"""What determines whether a job can start: its shape; its shape, priority and base job; or its bucket."""

Head = tuple[int, int, int, int]
"""The first job of a bucket: its row, the index of its shape, the number of the bucket, and 1 if it is known to wait
for quota and not for capacity."""


class Buckets:
    """The buckets of the waiting jobs, and the rules that assign a job to a bucket. `PendingQueue` derives from it."""

    def __init__(
        self, state: ClusterState, order: Order, bucket_of: Callable[[int, int], BucketKey] | None, preempts: bool,
        draws: bool, fair: bool,
    ) -> None:  # fmt: skip
        self.state = state
        self.order = order
        self.bucket_of = bucket_of
        self.preempts = self.always_preempts = preempts  # the first becomes True once priorities are mixed
        self.draws = draws
        self.fair = fair
        self.keeps_priority = False
        """Whether a job may not pass a blocked job of higher priority. If False, priorities are not recorded."""
        self.mixed = False
        """Whether `keeps_priority` is set and jobs of several priorities have been seen."""
        self.entries, self.buckets = w.make_table(w.ENTRY_WIDTH), w.make_table(w.BUCKET_WIDTH)
        self.verdicts, self.places = w.make_table(w.VERDICT_WIDTH), w.make_places()
        self.ready, self.sorting, self.sorted = np.zeros(64, np.int64), np.zeros(64, np.int64), w.make_table(5)
        self.fits = np.zeros(64, np.bool_)
        self.keys: list[BucketKey] = [()]
        """The keys of the buckets, by their numbers."""
        self.numbered = 0
        """How often the rules that determine the buckets and keys of jobs have changed."""
        self._numbers: dict[BucketKey, int] = {}
        self._known: dict[SchedulingKey, int] = {}  # the number of each scheduling key
        self._reaches: dict[object, int] = {}
        self._where: dict[tuple[int, ...], tuple[int, int]] = {}  # columns of a job -> its bucket and key
        self._heads: dict[tuple[bool, int], list[Head]] = {}
        self._by_user = state.quota_usage.limits_users
        self._booking_version = 0
        self.sees: int
        """What may let a sleeping job start besides freed capacity, as bits of `watch`."""
        self._rekey()

    def knows(self) -> bool:
        """Return whether the jobs of any scheduling key are known not to start."""
        return self.verdicts.item(0, w.V_ROW) > 0

    def reserve(self, jobs: int, more: int) -> None:
        """Grow the tables so that they hold `jobs` jobs in total and `more` additional waiting jobs."""
        if jobs > len(self.places):
            self.places = longer(self.places, jobs)
        if self.entries.item(0, w.E_ROW) + more >= len(self.entries):
            self.entries = longer(self.entries, self.entries.item(0, w.E_ROW) + more + 1)

    def _empty(self) -> None:
        """Empty all buckets. What is known about scheduling keys (`verdicts`) stays."""
        self.places[self.entries[1 : self.entries.item(0, w.E_ROW) + 1, w.E_ROW], w.P_ENTRY] = 0
        self.entries[0] = self.ready[0] = self.buckets[1:, w.B_TOP] = 0
        self._heads.clear()

    def _renumber(self) -> None:
        """Remove all buckets, keys and verdicts; numbering starts again."""
        self._empty()
        self.buckets[0] = 0
        self.verdicts[:] = 0
        self.keys = [()]
        self._rekey()
        for numbers in (self._numbers, self._known, self._reaches):
            numbers.clear()

    def _rekey(self) -> None:
        """Forget the buckets and keys of all jobs, since the rules that determine them have changed."""
        self._where.clear()
        self.numbered += 1
        self.sees = RIGHTS if self.preempts else 0
        if self.state.quota_usage.tree is not None:
            self.sees |= QUOTA | ((LIVE if self.fair else JOBS) if self.preempts else 0)

    def numbers(
        self, queue: int, shape: int, user: int, priority: int, base: int, preemptible: int, limit: int
    ) -> tuple[int, int]:
        """Return the number of a job's bucket and that of its scheduling key, from columns of the job table."""
        key = self._bucket_key(queue, shape, user, preemptible, limit)
        bucket = self._numbers.get(key)
        if bucket is None:
            bucket = self._new_bucket(key, shape)
        by = self._scheduling_key(key, shape, priority, base)
        known = self._known.get(by)
        if known is None:
            known = self._known[by] = len(self._known) + 1
            if known >= len(self.verdicts):
                self.verdicts, self.sorting = longer(self.verdicts), longer(self.sorting)
                self.fits = np.zeros(len(self.verdicts), np.bool_)
            self.verdicts[known, w.V_ALONE] = isinstance(by, tuple) and by[0] < 0
            self.verdicts[0, w.V_STATE] = known
        self._where[queue, shape, user, priority, base, preemptible, limit] = bucket, known
        return bucket, known

    def _new_bucket(self, key: BucketKey, shape: int) -> int:
        bucket = self._numbers[key] = len(self.keys)
        self.keys.append(key)
        if bucket >= len(self.buckets):
            self.buckets = longer(self.buckets)
            self.ready, self.sorting, self.sorted = longer(self.ready), longer(self.sorting), longer(self.sorted)
        found = self.state.shapes.shapes[shape]
        reach = self._reaches.setdefault(found.reach, len(self._reaches))
        self.buckets[bucket] = 0, key[0] if key else -1, reach, found.gpu_milli, 0, 0
        self.buckets[0, w.B_REACH] = bucket
        return bucket

    def _bucket_key(self, queue: int, shape: int, user: int, preemptible: int, limit: int) -> BucketKey:
        """Return the key of a job's bucket.

        The key includes the user if users have limits. With bookings it includes the time limit and whether the job is
        preemptible, since both decide which bookings are in the way. If priority is kept, a job that is not preemptible
        waits longer behind a blocked job, so its key differs.
        """
        assert self.bucket_of is not None
        key = self.bucket_of(queue, shape)
        if self.order.shares and key[:1] != (queue,):
            key = (queue, *key)
        if len(key) > 1:
            key = (*key, user) if self._by_user else key
            if self._booking_version:
                key = (*key, limit, preemptible)
            elif self.keeps_priority and not preemptible:
                key = (*key, 0)
        return key

    def _scheduling_key(self, bucket: BucketKey, shape: int, priority: int, base: int) -> SchedulingKey:
        """Return the scheduling key of a job: what determines whether it can start.

        With bookings, quotas or mixed priorities the bucket is the key; also for a gang of several groups if the
        placement draws random numbers. Otherwise the shape is the key; if jobs may be evicted, the key also has the
        priority and the base job, which a burst replica does not evict.
        """
        if (
            self._booking_version
            or self.mixed
            or self.state.quota_usage.tree is not None
            or (self.draws and len(self.state.shapes.shapes[shape].parts) > 1)
        ):
            return (-1, *bucket)
        return (shape, priority, base) if self.preempts else shape

    def heads(self, by_reach: bool = False, large: int = 0, above: int = -FOREVER) -> list[Head]:
        """Return the first job of every bucket, best first, if its priority is higher than `above`. `by_reach`: of jobs
        that compete for the same pools, only the best one with at least `large` milli-GPUs and the best smaller one.
        """
        found = self._heads.get((by_reach, above))
        if found is None:
            count = w.best_first(
                self.entries, self.buckets, self.verdicts, self.sorting, self.sorted, by_reach, large, -above
            )
            found = self._heads[by_reach, above] = list(map(tuple, self.sorted[:count, 1:].tolist()))
        return found

    def first_jobs(self) -> list[Head]:
        """Return the first job of every bucket, best first; of buckets that differ only by bookings, the best job.

        So bookings do not change which jobs wait behind these first jobs.
        """
        if not self._booking_version:
            return self.heads()
        best: dict[BucketKey, Head] = {}
        for head in self.heads():
            key = self.keys[head[2]]
            best.setdefault(key if len(key) < 2 else key[:-2] if key[-1] else (*key[:-2], 0), head)
        return list(best.values())

    def head_before(self, row: int) -> int | None:
        """Return the row of the first job of a job's bucket, which keeps it from being tried; None if it is first."""
        if self.bucket_of is None:
            return None
        queue, shape, user, preemptible = self.state.jobs[row, [J_QUEUE, J_SHAPE, J_USER, J_PREEMPTIBLE]].tolist()
        key = self._bucket_key(queue, shape, user, preemptible, self.state.live[row].limit)
        top = self.buckets.item(self._numbers.get(key, 0), w.B_TOP)
        first = self.entries.item(top, w.E_ROW)
        return first if top and first != row else None
