"""A bucket of waiting jobs, and what is known of a scheduling key that cannot start."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

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
ANYTHING = -1

# What is known of a scheduling key.
AWAKE = 0
"""It may be tried."""
ASLEEP = 1
"""It cannot start."""
UNPROVEN = 2
"""It was not found to start, and is tried again in the next cycle."""
STIRRED = 3
"""Nothing but the capacity that has come free may let it start: it wakes if it may fit now."""


class Bucket(Struct, eq=False):
    """Waiting jobs of which only the first may be tried: `heap` has their entries, the first one at the top."""

    key: BucketKey
    heap: list[Entry]


class Verdict(Struct, eq=False):
    """What is known of a scheduling key, and what may change it. While it is not AWAKE the buckets sleep whose first
    job has the key.

    `row` is the only job of which this is known (-1: all of the key). `pools` are bits: capacity that comes free in one
    of them wakes. `wakes_on` has what else does. `until` is a time at which the answer may change by itself, µs (-1:
    none). `nobody`: it may evict nobody. `by_quota`: quotas keep it, not what runs. With both no capacity wakes it.
    """

    state: int
    row: int
    shape: Shape
    pools: int
    wakes_on: int
    until: int
    nobody: bool
    by_quota: bool
