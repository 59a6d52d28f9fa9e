"""A bucket of waiting jobs, and what is known of a scheduling key that cannot start."""

from __future__ import annotations

from typing import Any

from kant.cluster.shapes import Shape

BucketKey = tuple[int, ...]
"""The queue; then the shape, where jobs of other shapes may pass; then the user, where users are limited."""

SchedulingKey = int | tuple[int, ...]
"""What decides whether a job can start: its shape; its shape, priority and base job; or its bucket."""

Entry = tuple[int, Any, int, int, SchedulingKey]
"""(-priority, key of the order, row, shape, scheduling key): rows are in order of arrival, so they break ties."""

# What may let an unschedulable job start, beside capacity that comes free in one of its pools.
NODES = 1
"""Any node changes: a gang of several groups may fit where less is free."""
JOBS = 2
"""Any job starts or stops: it may change who may be evicted for whom."""
LIVE = 4
"""Any job comes, starts, stops or leaves: it changes the fair shares of the queues."""
QUOTA = 8
"""Quota comes free, or the quotas change."""
RIGHTS = 16
"""Running jobs that may be evicted come to be, or are no more: one of lower priority, or one beyond its quota."""

ANY_START = NODES | JOBS | LIVE
"""What changes when the plan under way starts a job."""


class Bucket:
    """Waiting jobs of which only the first may be tried: `heap` has their entries, the first one at the top."""

    __slots__ = ("asleep", "heap", "key")

    def __init__(self, key: BucketKey) -> None:
        self.key = key
        self.heap: list[Entry] = []
        self.asleep: Unschedulable | None = None


class Unschedulable:
    """A scheduling key that cannot start, and what wakes the buckets that sleep because of it.

    `pools` are bits: capacity that comes free in one of them wakes. `wakes_on` has what else does. `until` is a time at
    which the answer may change by itself (-1: none). `row` is the only job of which this is known (-1: all of the key).
    `nobody`: it may evict nobody. `by_quota`: quotas keep it, not what runs. With both no capacity wakes it.
    """

    __slots__ = ("buckets", "by_quota", "key", "nobody", "pools", "row", "shape", "until", "wakes_on")

    def __init__(
        self, key: SchedulingKey, row: int, shape: Shape, wakes_on: int, until: int, nobody: bool, by_quota: bool
    ) -> None:
        self.key = key
        self.row = row
        self.shape = shape
        self.nobody = nobody
        self.pools = 0 if nobody and by_quota else shape.pool_bits
        self.wakes_on = wakes_on
        self.until = until
        self.by_quota = by_quota
        self.buckets: dict[BucketKey, Bucket] = {}


class Retries(dict[SchedulingKey, tuple[int, int]]):
    """Scheduling keys that were tried and may start by themselves: of which row alone that is said (-1: all), and when.

    Times are microseconds.
    """

    def first(self, heads: list[Entry], now: int) -> int:
        """The first time to come of these first jobs, -1 for never. Times that are over are dropped."""
        for key in [key for key, (_, until) in self.items() if until <= now]:
            del self[key]
        first = -1
        for head in heads if self else ():
            row, until = self.get(head[4], (-1, -1))
            if until >= 0 and row in (-1, head[2]) and not 0 <= first <= until:
                first = until
        return first
