"""The waiting jobs in columns: buckets, what is known of scheduling keys, and who is awake.

A scheduling key is one row of one table of states. It is awake, asleep, unproven or stirred; the row says until when,
what wakes it, and of which job this is known. A bucket is a row with the entry of its first job. Entries are rows of a
third table, in a skew heap for each bucket (D. D. Sleator and R. E. Tarjan, Self-adjusting heaps, SIAM J. Comput.
15(1), 1986), so any of them can be taken out. What a job's row is in, and whether its owner knows that it waits, is a
fourth. `PendingQueue` calls these functions, and so do the instants that pass in compiled code (`sim/advance.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.queueing.watch import ANYTHING, NODES, freed

# Entries of the jobs that wait in a bucket. The smallest (E_PRIORITY, E_KEY, E_ROW) goes first.
E_ROW, E_PRIORITY, E_KEY, E_SHAPE, E_KNOWN, E_BUCKET, E_LEFT, E_RIGHT, E_ABOVE = range(9)
ENTRY_WIDTH = 9
"""Row 0 is none: it has how many rows are used in E_ROW, and the first row that is free again in E_LEFT."""

# Buckets. Of them only the first job is tried.
B_TOP, B_QUEUE, B_LANE, B_MILLI, B_READY = range(5)
"""The entry of the first job; its queue; the pools that it competes for, by a number; its milli-GPUs; and the entry by
which the bucket has its turn."""
BUCKET_WIDTH = 5
"""Row 0 is none, and has the number of the last bucket in B_LANE."""

# What is known of a scheduling key, and what may change it.
V_STATE = 0
V_ROW = 1  # the only job of which this is known; -1: all of the key
V_SHAPE = 2
V_POOLS = 3  # bits: capacity that comes free in one of these pools wakes it
V_WAKES_ON = 4  # what else does, as bits of `watch`
V_UNTIL = 5  # when the answer may change by itself, µs; none where that is past
V_NOBODY = 6  # 1: it may evict nobody
V_BY_QUOTA = 7  # 1: quotas keep it, not what runs
V_ALONE = 8  # 1: what is known holds for the job that was tried, and for no other of the key
V_WOKE = 9
VERDICT_WIDTH = 10
"""Row 0 has the number of the last key in V_STATE, and how many are not forgotten in V_ROW."""

# States of a key. While it is not awake the buckets sleep whose first job has it.
AWAKE = 0
"""It may be tried."""
ASLEEP = 1
"""It cannot start."""
UNPROVEN = 2
"""It was not found to start, and is tried again in the next cycle."""
STIRRED = 3
"""Nothing but the capacity that has come free may let it start: it wakes if it may fit now."""

# Of each job, by its row.
P_ENTRY, P_TOLD = range(2)  # its entry (0: none); 1: it has been said that it waits, since it came to wait
PLACE_WIDTH = 2

# What waking has done, as bits.
MAY_TRY, DOUBTS = 1, 2


def make_table(width: int, rows: int = 64) -> Table:
    return np.zeros((rows, width), dtype=np.int64)


def as_integers(keys: np.ndarray) -> Table:
    """Keys of an order as integers that are in the same order."""
    if keys.dtype.kind != "f":
        return keys.astype(np.int64, copy=False)
    bits: Table = (keys.astype(np.float64) + 0.0).view(np.int64)  # -0.0 is 0.0
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)


# --- entries and their heaps ----------------------------------------------------------------------------------------


@inlined
def before(entries: Table, one: int, other: int) -> bool:
    """Whether an entry goes before another one."""
    for column in (E_PRIORITY, E_KEY):
        if entries[one, column] != entries[other, column]:
            return bool(entries[one, column] < entries[other, column])
    return bool(entries[one, E_ROW] < entries[other, E_ROW])


@inlined
def meld(entries: Table, one: int, other: int) -> int:
    """The heap of two heaps: its first entry. What is above that is for the caller to say."""
    top, last = 0, 0
    while one > 0 and other > 0:
        if before(entries, other, one):
            one, other = other, one
        if last == 0:
            top = one
        else:
            entries[last, E_LEFT], entries[one, E_ABOVE] = one, last
        last, one = one, entries[one, E_RIGHT]
        entries[last, E_RIGHT] = entries[last, E_LEFT]
    rest = one if one > 0 else other
    if last == 0:
        return int(rest)
    entries[last, E_LEFT] = rest
    if rest > 0:
        entries[rest, E_ABOVE] = last
    return int(top)


@inlined
def push(
    entries: Table, places: Table, buckets: Table, row: int, priority: int, key: int, shape: int, known: int,
    bucket: int,
) -> bool:  # fmt: skip
    """A job waits in a bucket; whether it is the first there. There is room for one more entry."""
    new = entries[0, E_LEFT]
    if new > 0:
        entries[0, E_LEFT] = entries[new, E_LEFT]
    else:
        entries[0, E_ROW] += 1
        new = entries[0, E_ROW]
    entry = entries[new]
    entry[E_ROW], entry[E_PRIORITY], entry[E_KEY], entry[E_SHAPE] = row, priority, key, shape
    entry[E_KNOWN], entry[E_BUCKET] = known, bucket
    entry[E_LEFT] = entry[E_RIGHT] = 0
    places[row, P_ENTRY] = new
    top = meld(entries, buckets[bucket, B_TOP], new)
    buckets[bucket, B_TOP] = top
    entries[top, E_ABOVE] = 0
    return bool(top == new)


@inlined
def remove(entries: Table, places: Table, buckets: Table, old: int) -> bool:
    """An entry leaves its bucket; whether it was the first there."""
    entry = entries[old]
    above, rest = entry[E_ABOVE], meld(entries, entry[E_LEFT], entry[E_RIGHT])
    if above == 0:
        buckets[entry[E_BUCKET], B_TOP] = rest
    elif entries[above, E_LEFT] == old:
        entries[above, E_LEFT] = rest
    else:
        entries[above, E_RIGHT] = rest
    if rest > 0:
        entries[rest, E_ABOVE] = above
    places[entry[E_ROW], P_ENTRY] = 0
    entry[E_LEFT], entries[0, E_LEFT] = entries[0, E_LEFT], old
    return bool(above == 0)


@compiled
def push_one(
    entries: Table, places: Table, buckets: Table, verdicts: Table, row: int, priority: int, key: int, shape: int,
    known: int, bucket: int, wakes: bool,
) -> bool:  # fmt: skip
    """A job waits in a bucket; whether it is the first there. Then it `wakes` its key, or is as awake as that."""
    first = push(entries, places, buckets, row, priority, key, shape, known, bucket)
    if first and wakes:
        verdicts[known, V_STATE] = AWAKE
    return first


@compiled
def drop(entries: Table, places: Table, buckets: Table, row: int) -> bool:
    """A job leaves its bucket, if it is in one; whether it was the first there."""
    old = places[row, P_ENTRY]
    return bool(old > 0 and remove(entries, places, buckets, old))


@compiled
def take_first(entries: Table, places: Table, buckets: Table, bucket: int) -> None:
    """The first job of a bucket leaves it."""
    remove(entries, places, buckets, buckets[bucket, B_TOP])


# --- sleep and wake -------------------------------------------------------------------------------------------------


@inlined
def sleeps(entries: Table, verdicts: Table, entry: int) -> bool:
    """Whether it is known that a job cannot start."""
    known = verdicts[entries[entry, E_KNOWN]]
    return bool(known[V_STATE] != AWAKE and (known[V_ROW] == -1 or known[V_ROW] == entries[entry, E_ROW]))


@inlined
def learn(
    entries: Table, verdicts: Table, entry: int, state: int, pools: int, wakes_on: int, until: int, nobody: bool,
    by_quota: bool, now: int,
) -> None:  # fmt: skip
    """A job was tried and cannot start: that is known of its key until something may change it."""
    known = verdicts[entries[entry, E_KNOWN]]
    verdicts[0, V_ROW] += known[V_STATE] == AWAKE and known[V_UNTIL] <= now
    known[V_STATE], known[V_POOLS], known[V_WAKES_ON], known[V_UNTIL] = state, pools, wakes_on, until
    known[V_NOBODY], known[V_BY_QUOTA] = nobody, by_quota
    known[V_ROW] = entries[entry, E_ROW] if known[V_ALONE] == 1 else -1
    known[V_SHAPE] = entries[entry, E_SHAPE]


@inlined
def wake(
    entries: Table, buckets: Table, verdicts: Table, ready: Table, changed: int, pools: int, stirs: bool, now: int
) -> int:
    """Wake the keys that one of these changes, or capacity that comes free in these pools, may let start.

    Buckets whose turn is still to come are ready then. With `stirs` keys that only capacity may help are stirred.
    Returns MAY_TRY and DOUBTS.
    """
    found, woke, left = 0, False, 0
    for k in range(1, verdicts[0, V_STATE] + 1):
        known = verdicts[k]
        late = known[V_UNTIL] <= now
        if known[V_STATE] == AWAKE:
            left += not late
            continue
        helps = known[V_WAKES_ON] & changed
        if changed == ANYTHING or helps & ~NODES != 0 or (late and known[V_UNTIL] >= 0):
            known[V_STATE] = AWAKE
        elif known[V_POOLS] & pools != 0 or helps != 0:
            known[V_STATE] = STIRRED if stirs and known[V_NOBODY] == 1 and known[V_STATE] != UNPROVEN else AWAKE
        else:
            left += 1
            continue
        found |= MAY_TRY
        if known[V_STATE] != AWAKE:
            found |= DOUBTS
            left += 1
        else:
            known[V_WOKE], woke = 1, True
            left += not late
    verdicts[0, V_ROW] = left
    if woke:
        for b in range(1, buckets[0, B_LANE] + 1):
            top = buckets[b, B_TOP]
            late = top > 0 and ready[0] > 0 and buckets[b, B_READY] == 0 and before(entries, ready[1], top)
            if late and verdicts[entries[top, E_KNOWN], V_WOKE] == 1:
                add_ready(entries, buckets, ready, top)
        for k in range(1, verdicts[0, V_STATE] + 1):
            verdicts[k, V_WOKE] = 0
    return found


@compiled
def follow_pools(
    entries: Table, buckets: Table, verdicts: Table, ready: Table, pools: Table, seen: Table, changed: int, now: int
) -> int:
    """Wake what one of these changes, or the capacity that has come free since it was `seen`, may let start."""
    return int(wake(entries, buckets, verdicts, ready, changed, freed(pools, seen), True, now))


@compiled
def wake_some(
    entries: Table, buckets: Table, verdicts: Table, ready: Table, changed: int, pools: int, stirs: bool, now: int
) -> int:
    return int(wake(entries, buckets, verdicts, ready, changed, pools, stirs, now))


@compiled
def rouse(verdicts: Table, stirred: Table, now: int) -> int:
    """Unproven keys wake. How many are stirred; `stirred` has them."""
    count = 0
    for k in range(1, verdicts[0, V_STATE] + 1):
        if verdicts[k, V_STATE] == STIRRED:
            stirred[count] = k
            count += 1
        elif verdicts[k, V_STATE] == UNPROVEN:
            verdicts[k, V_STATE] = AWAKE
            verdicts[0, V_ROW] -= verdicts[k, V_UNTIL] <= now
    return count


@inlined
def settle(
    entries: Table, places: Table, buckets: Table, verdicts: Table, k: int, fits: bool, shares: bool, now: int
) -> None:
    """A stirred key wakes.

    It sleeps on where it does not fit, and the best of the first jobs with it has been told that it waits. Where queues
    have `shares` that job need not be the first to be tried.
    """
    best = 0
    for b in range(1, buckets[0, B_LANE] + 1):
        top = buckets[b, B_TOP]
        if top > 0 and entries[top, E_KNOWN] == k and (best == 0 or before(entries, top, best)):
            best = top
    if not fits and (best == 0 or (places[entries[best, E_ROW], P_TOLD] == 1 and not shares)):
        verdicts[k, V_STATE] = ASLEEP
    else:
        verdicts[k, V_STATE] = AWAKE
        verdicts[0, V_ROW] -= verdicts[k, V_UNTIL] <= now


@compiled
def wakes_first(entries: Table, verdicts: Table, heads: Table, now: int) -> int:
    """When the first of these first jobs may start by itself what it could not when it was tried, µs; -1 for never."""
    first = -1
    for i in range(heads.shape[0]):
        known = verdicts[entries[heads[i], E_KNOWN]]
        its = known[V_ROW] == -1 or known[V_ROW] == entries[heads[i], E_ROW]
        if its and known[V_UNTIL] > now and (first < 0 or known[V_UNTIL] < first):
            first = known[V_UNTIL]
    return int(first)


# --- the buckets of a round: a heap of their entries. Row 0 has their number ----------------------------------------


@inlined
def sift(entries: Table, ready: Table, entry: int) -> None:
    """Put an entry at its place from the top of the heap on."""
    count, i, child = ready[0], 1, 2
    while child <= count:
        if child < count and before(entries, ready[child + 1], ready[child]):
            child += 1
        if not before(entries, ready[child], entry):
            break
        ready[i] = ready[child]
        i, child = child, 2 * child
    ready[i] = entry


@inlined
def push_entry(entries: Table, heap: Table, entry: int) -> None:
    heap[0] += 1
    i = heap[0]
    while i > 1 and before(entries, entry, heap[i >> 1]):
        heap[i] = heap[i >> 1]
        i >>= 1
    heap[i] = entry


@inlined
def add_ready(entries: Table, buckets: Table, ready: Table, entry: int) -> None:
    """A bucket has its turn."""
    buckets[entries[entry, E_BUCKET], B_READY] = entry
    push_entry(entries, ready, entry)


@inlined
def pop_ready(entries: Table, buckets: Table, ready: Table) -> None:
    """The first bucket has had its turn."""
    buckets[entries[ready[1], E_BUCKET], B_READY] = 0
    ready[0] -= 1
    if ready[0] > 0:
        sift(entries, ready, ready[ready[0] + 1])


@inlined
def fill_ready(entries: Table, buckets: Table, verdicts: Table, ready: Table) -> None:
    """A round begins: all buckets have their turn that are awake."""
    ready[0] = 0
    for b in range(1, buckets[0, B_LANE] + 1):
        buckets[b, B_READY] = 0
        if buckets[b, B_TOP] > 0 and not sleeps(entries, verdicts, buckets[b, B_TOP]):
            add_ready(entries, buckets, ready, buckets[b, B_TOP])


@inlined
def next_ready(entries: Table, buckets: Table, verdicts: Table, ready: Table, aside: int) -> int:
    """The entry of the first job whose turn it is, but for that of bucket `aside`; 0 where there is none."""
    while ready[0] > 0:
        entry = ready[1]
        bucket = entries[entry, E_BUCKET]
        top = buckets[bucket, B_TOP]
        if top > 0 and top != entry:
            buckets[bucket, B_READY] = top
            sift(entries, ready, top)
        elif top == 0 or bucket == aside or sleeps(entries, verdicts, entry):
            pop_ready(entries, buckets, ready)
        else:
            return int(entry)
    return 0


@compiled
def begin_round(
    entries: Table, places: Table, buckets: Table, verdicts: Table, ready: Table, stirred: Table,
    fits: NDArray[np.bool_], count: int, shares: bool, now: int,
) -> int:  # fmt: skip
    """A round begins: the entry of the first job whose turn it is; 0 where there is none.

    Before it `count` keys are settled that are `stirred`, and of which it is known whether they may fit. Where queues
    have shares their `turns` are asked for instead.
    """
    for i in range(count):
        settle(entries, places, buckets, verdicts, stirred[i], fits[i], shares, now)
    if shares:
        return 0
    fill_ready(entries, buckets, verdicts, ready)
    return int(next_ready(entries, buckets, verdicts, ready, 0))


@compiled
def turns(entries: Table, buckets: Table, verdicts: Table, late: int, found: Table) -> int:
    """Put the first jobs of the buckets that are awake in `found`, and of those that one of the changes `late` wakes;
    how many. They are there by queue, E_PRIORITY, E_KEY, row and entry."""
    count = 0
    for b in range(1, buckets[0, B_LANE] + 1):
        top = buckets[b, B_TOP]
        if top > 0 and (not sleeps(entries, verdicts, top) or verdicts[entries[top, E_KNOWN], V_WAKES_ON] & late != 0):
            found[count, 0], found[count, 1] = buckets[b, B_QUEUE], entries[top, E_PRIORITY]
            found[count, 2], found[count, 3], found[count, 4] = entries[top, E_KEY], entries[top, E_ROW], top
            count += 1
    return count


@compiled
def go_on(entries: Table, buckets: Table, verdicts: Table, ready: Table, aside: int) -> int:
    return int(next_ready(entries, buckets, verdicts, ready, aside))


@compiled
def best_first(
    entries: Table, buckets: Table, verdicts: Table, heap: Table, heads: Table, lanes: bool, large: int, above: int
) -> int:
    """Put the first jobs of the buckets in `heads`, best first; how many. They are there by entry, row, shape and
    bucket, and whether quotas are known to keep them. All have an E_PRIORITY below `above`.

    With `lanes` they are the best one of each lane alone, and of those of it from `large` milli-GPUs on.
    """
    heap[0] = 0
    best = np.zeros(2 * (buckets[0, B_LANE] + 1) if lanes else 0, dtype=np.int64)
    for b in range(1, buckets[0, B_LANE] + 1):
        top = buckets[b, B_TOP]
        if top == 0 or entries[top, E_PRIORITY] >= above:
            continue
        if lanes:
            lane = 2 * buckets[b, B_LANE] + (buckets[b, B_MILLI] >= large)
            if best[lane] == 0 or before(entries, top, best[lane]):
                best[lane] = top
        else:
            push_entry(entries, heap, top)
    for lane in range(best.shape[0]):
        if best[lane] > 0:
            push_entry(entries, heap, best[lane])
    count = heap[0]
    for i in range(count):
        entry = entries[heap[1]]
        heads[i, 0], heads[i, 1], heads[i, 2], heads[i, 3] = heap[1], entry[E_ROW], entry[E_SHAPE], entry[E_BUCKET]
        heads[i, 4] = verdicts[entry[E_KNOWN], V_BY_QUOTA] == 1 and sleeps(entries, verdicts, heap[1])
        heap[0] -= 1
        if heap[0] > 0:
            sift(entries, heap, heap[heap[0] + 1])
    return int(count)
