"""The waiting jobs in columns: entries, buckets, and verdicts: what is known of each scheduling key.

A verdict is a row for one key: whether the key is awake, asleep, unproven or stirred, until when, what wakes it, and
for which jobs this holds. A bucket is a row of a second table, with the entry of its first job.
Entries are rows of a third table, in a skew heap for each bucket (D. D. Sleator and R. E. Tarjan, Self-adjusting heaps,
SIAM J. Comput. 15(1), 1986), so any entry can be removed. A fourth table has the entry of each job, and whether its
wait was recorded. `PendingQueue` and the compiled simulation (`sim/advance.py`) call these functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Narrow, Table
from kant.compiled import compiled, inlined
from kant.queueing.watch import ANYTHING, JOBS, LIVE, NODES, QUOTA, RIGHTS, freed

# Entries of the jobs that wait in a bucket. The smallest (E_PRIORITY, E_KEY, E_ROW) goes first.
E_ROW, E_PRIORITY, E_KEY, E_SHAPE, E_KNOWN, E_BUCKET, E_LEFT, E_RIGHT, E_ABOVE = range(9)
ENTRY_WIDTH = 9
"""Row 0 is no entry: its E_ROW is the number of rows used, its E_LEFT the first row of the free list."""

# Buckets. Only the first job of a bucket is tried.
B_TOP, B_QUEUE, B_REACH, B_MILLI, B_READY, B_HELD = range(6)
"""The entry of the first job; its queue; its reach (a number for the pools that it competes for); its milli-GPUs;
the entry of the bucket in the heap of the round; and, in compiled simulations only, 1 while that job is held."""
BUCKET_WIDTH = 6
"""Row 0 is no bucket; its B_REACH is the number of the last bucket."""

# The verdict of a scheduling key, and what may change it.
V_STATE = 0
V_ROW = 1  # the only job for which the verdict holds; -1: all jobs of the key
V_SHAPE = 2
V_POOLS = 3  # bits: freed capacity in one of these pools wakes the key
V_WAKES_ON = 4  # what else wakes the key, as bits of `watch`
V_UNTIL = 5  # when time alone may change the verdict, µs; never if that time is past
V_NO_CANDIDATES = 6  # 1: the jobs have no eviction candidates
V_BY_QUOTA = 7  # 1: the jobs wait for quota, not for capacity
V_ALONE = 8  # 1: a verdict holds only for the job that was tried
V_WOKE = 9
VERDICT_WIDTH = 10
"""Row 0: V_STATE is the number of the last key, V_ROW the number of keys with a verdict that counts."""

# States of a key. While it is not awake, the buckets whose first job has it sleep.
AWAKE = 0
"""The jobs of the key may be tried."""
ASLEEP = 1
"""The jobs of the key cannot start."""
UNPROVEN = 2
"""A job of the key did not start, but it is not proven that none can; the next cycle tries again."""
STIRRED = 3
"""Only freed capacity may let a job of the key start: the key wakes if the job may fit now."""

# Columns of the table of jobs; its rows are the rows of the jobs.
P_ENTRY, P_RECORDED = range(2)  # the job's entry (0: none); 1 if its current wait was recorded
PLACE_WIDTH = 2

# Results of waking, as bits.
MAY_TRY, DOUBTS = 1, 2


def make_table(width: int, rows: int = 64) -> Table:
    return np.zeros((rows, width), dtype=np.int64)


def make_places(jobs: int = 64) -> Narrow:
    return np.zeros((jobs, PLACE_WIDTH), dtype=np.int32)


def as_integers(keys: np.ndarray) -> Table:
    """Convert the keys of an order to integers that sort in the same order."""
    if keys.dtype.kind != "f":
        return keys.astype(np.int64, copy=False)
    bits: Table = (keys.astype(np.float64) + 0.0).view(np.int64)  # -0.0 is 0.0
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)


# --- entries and their heaps ----------------------------------------------------------------------------------------


@inlined
def before(entries: Table, one: int, other: int) -> bool:
    """Return whether an entry goes before another one."""
    for column in (E_PRIORITY, E_KEY):
        if entries[one, column] != entries[other, column]:
            return bool(entries[one, column] < entries[other, column])
    return bool(entries[one, E_ROW] < entries[other, E_ROW])


@inlined
def meld(entries: Table, one: int, other: int) -> int:
    """Merge two heaps and return the first entry. The caller sets its E_ABOVE."""
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
    entries: Table, places: Narrow, buckets: Table, row: int, priority: int, key: int, shape: int, known: int,
    bucket: int,
) -> bool:  # fmt: skip
    """Add a job to a bucket; return whether it is now the first. The table must have room for one more entry."""
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
def remove(entries: Table, places: Narrow, buckets: Table, old: int) -> bool:
    """Remove an entry from its bucket; return whether it was the first."""
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
    entries: Table, places: Narrow, buckets: Table, verdicts: Table, row: int, priority: int, key: int, shape: int,
    known: int, bucket: int, wakes: bool,
) -> bool:  # fmt: skip
    """Add a job to a bucket; return whether it is now the first. If so, and with `wakes`, its key wakes."""
    first = push(entries, places, buckets, row, priority, key, shape, known, bucket)
    if first and wakes:
        verdicts[known, V_STATE] = AWAKE
    return first


@compiled
def drop(entries: Table, places: Narrow, buckets: Table, row: int) -> bool:
    """Remove a job from its bucket, if any; return whether it was the first there."""
    old = places[row, P_ENTRY]
    return bool(old > 0 and remove(entries, places, buckets, old))


# --- sleep and wake -------------------------------------------------------------------------------------------------


@inlined
def sleeps(entries: Table, verdicts: Table, entry: int) -> bool:
    """Return whether a job is known not to start."""
    known = verdicts[entries[entry, E_KNOWN]]
    return bool(known[V_STATE] != AWAKE and (known[V_ROW] == -1 or known[V_ROW] == entries[entry, E_ROW]))


@inlined
def learn(
    entries: Table, verdicts: Table, entry: int, pools: int, sees: int, until: int, proven: bool, no_candidates: bool,
    by_quota: bool, now: int,
) -> int:  # fmt: skip
    """Record that a job was tried and cannot start. Its key sleeps until a change may help; if that is not `proven`,
    the job is tried again in the next cycle.

    `sees`: the changes that may help such jobs, as bits of `watch`; those that wake the key are returned. `until`: when
    time alone may help, µs. With `no_candidates` no eviction helps; with `by_quota` as well, the job waits only for
    quota, and freed capacity does not help either.
    """
    known, wakes_on = verdicts[entries[entry, E_KNOWN]], sees & (NODES | QUOTA)
    if no_candidates:
        wakes_on |= sees & RIGHTS
    else:
        wakes_on |= LIVE if until >= 0 else sees & (JOBS | LIVE)
    verdicts[0, V_ROW] += known[V_STATE] == AWAKE and known[V_UNTIL] <= now
    known[V_STATE], known[V_WAKES_ON], known[V_UNTIL] = ASLEEP if proven else UNPROVEN, wakes_on, until
    known[V_POOLS] = 0 if by_quota and no_candidates else pools
    known[V_NO_CANDIDATES], known[V_BY_QUOTA] = no_candidates, by_quota
    known[V_ROW] = entries[entry, E_ROW] if known[V_ALONE] == 1 else -1
    known[V_SHAPE] = entries[entry, E_SHAPE]
    return int(wakes_on)


learn_one = compiled(learn)


@inlined
def wake(
    entries: Table, buckets: Table, verdicts: Table, ready: Table, changed: int, pools: int, stirs: bool, now: int
) -> int:
    """Wake the keys whose jobs may start after these changes, or because capacity is freed in these pools.

    Woken buckets whose turn is still to come join the round. `stirs`: keys that only capacity may help are stirred.
    Returns the bits MAY_TRY and DOUBTS, as they apply.
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
            known[V_STATE] = STIRRED if stirs and known[V_NO_CANDIDATES] == 1 and known[V_STATE] != UNPROVEN else AWAKE
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
        for b in range(1, buckets[0, B_REACH] + 1):
            top = buckets[b, B_TOP]
            late = top > 0 and ready[0] > 0 and buckets[b, B_READY] == 0 and before(entries, ready[1], top)
            if late and verdicts[entries[top, E_KNOWN], V_WOKE] == 1:
                add_ready(entries, buckets, ready, top)
        for k in range(1, verdicts[0, V_STATE] + 1):
            verdicts[k, V_WOKE] = 0
    return found


wake_some = compiled(wake)


@compiled
def follow_pools(
    entries: Table, buckets: Table, verdicts: Table, ready: Table, pools: Table, seen: Table, changed: int, now: int
) -> int:
    """Wake the keys whose jobs may start after these changes, or because capacity was freed since `seen`."""
    return int(wake(entries, buckets, verdicts, ready, changed, freed(pools, seen), True, now))


@compiled
def rouse(verdicts: Table, stirred: Table, now: int) -> int:
    """Wake the unproven keys. Writes the stirred keys into `stirred` and returns their number."""
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
    entries: Table, places: Narrow, buckets: Table, verdicts: Table, k: int, fits: bool, shares: bool, now: int
) -> None:
    """Wake a stirred key if a job of the key may fit (`fits`).

    The key also wakes if the wait of its best first job was not recorded yet. With `shares` it always wakes, as long as
    it has a bucket, since that job need not be the first to be tried.
    """
    best = 0
    for b in range(1, buckets[0, B_REACH] + 1):
        top = buckets[b, B_TOP]
        if top > 0 and entries[top, E_KNOWN] == k and (best == 0 or before(entries, top, best)):
            best = top
    if not fits and (best == 0 or (places[entries[best, E_ROW], P_RECORDED] == 1 and not shares)):
        verdicts[k, V_STATE] = ASLEEP
    else:
        verdicts[k, V_STATE] = AWAKE
        verdicts[0, V_ROW] -= verdicts[k, V_UNTIL] <= now


@compiled
def wakes_first(entries: Table, verdicts: Table, heads: Table, now: int) -> int:
    """Return when time alone may first let one of these heads start, µs; -1 for never."""
    first = -1
    for i in range(heads.shape[0]):
        known = verdicts[entries[heads[i], E_KNOWN]]
        its = known[V_ROW] == -1 or known[V_ROW] == entries[heads[i], E_ROW]
        if its and known[V_UNTIL] > now and (first < 0 or known[V_UNTIL] < first):
            first = known[V_UNTIL]
    return int(first)


# --- the buckets of a round: a heap of their entries. Row 0 is their number ----------------------------------------


@inlined
def sift(entries: Table, ready: Table, entry: int) -> None:
    """Sift an entry down from the top of the heap."""
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
    """Add a bucket to the round."""
    buckets[entries[entry, E_BUCKET], B_READY] = entry
    push_entry(entries, ready, entry)


@inlined
def pop_ready(entries: Table, buckets: Table, ready: Table) -> None:
    """Remove the first bucket from the round."""
    buckets[entries[ready[1], E_BUCKET], B_READY] = 0
    ready[0] -= 1
    if ready[0] > 0:
        sift(entries, ready, ready[ready[0] + 1])


@inlined
def fill_ready(entries: Table, buckets: Table, verdicts: Table, ready: Table) -> None:
    """Begin a round with all awake buckets."""
    ready[0] = 0
    for b in range(1, buckets[0, B_REACH] + 1):
        buckets[b, B_READY] = 0
        if buckets[b, B_TOP] > 0 and not sleeps(entries, verdicts, buckets[b, B_TOP]):
            add_ready(entries, buckets, ready, buckets[b, B_TOP])


@inlined
def next_ready(entries: Table, buckets: Table, verdicts: Table, ready: Table, aside: int) -> int:
    """Return the entry of the next job to try, skipping bucket `aside`; 0 for none."""
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


go_on = compiled(next_ready)


@compiled
def begin_round(
    entries: Table, places: Narrow, buckets: Table, verdicts: Table, ready: Table, stirred: Table,
    fits: NDArray[np.bool_], count: int, shares: bool, now: int,
) -> int:  # fmt: skip
    """Begin a round; return the entry of the first job to try; 0 for none.

    Before that the first `count` keys of `stirred` are settled; `fits` says whether each of them may fit. With
    `shares`, returns 0: the caller uses `turns` instead.
    """
    for i in range(count):
        settle(entries, places, buckets, verdicts, stirred[i], fits[i], shares, now)
    if shares:
        return 0
    fill_ready(entries, buckets, verdicts, ready)
    return int(next_ready(entries, buckets, verdicts, ready, 0))


@compiled
def turns(entries: Table, buckets: Table, verdicts: Table, late: int, found: Table) -> int:
    """Write into `found` the first jobs of the buckets that are awake, or that one of the changes `late` wakes: queue,
    E_PRIORITY, E_KEY, row and entry. Returns their number."""
    count = 0
    for b in range(1, buckets[0, B_REACH] + 1):
        top = buckets[b, B_TOP]
        if top > 0 and (not sleeps(entries, verdicts, top) or verdicts[entries[top, E_KNOWN], V_WAKES_ON] & late != 0):
            found[count, 0], found[count, 1] = buckets[b, B_QUEUE], entries[top, E_PRIORITY]
            found[count, 2], found[count, 3], found[count, 4] = entries[top, E_KEY], entries[top, E_ROW], top
            count += 1
    return count


@compiled
def best_first(
    entries: Table, buckets: Table, verdicts: Table, heap: Table, heads: Table, by_reach: bool, large: int, above: int
) -> int:
    """Write the first jobs of buckets with an E_PRIORITY below `above` into `heads`, best first; return their number.

    Each row has the entry, row, shape and bucket, and whether the job is known to wait for quota. With `by_reach`: only
    the best job of each reach below `large` milli-GPUs, and the best from `large` on.
    """
    heap[0] = 0
    best = np.zeros(2 * (buckets[0, B_REACH] + 1) if by_reach else 0, dtype=np.int64)
    for b in range(1, buckets[0, B_REACH] + 1):
        top = buckets[b, B_TOP]
        if top == 0 or entries[top, E_PRIORITY] >= above:
            continue
        if by_reach:
            group = 2 * buckets[b, B_REACH] + (buckets[b, B_MILLI] >= large)
            if best[group] == 0 or before(entries, top, best[group]):
                best[group] = top
        else:
            push_entry(entries, heap, top)
    for group in range(best.shape[0]):
        if best[group] > 0:
            push_entry(entries, heap, best[group])
    count = heap[0]
    for i in range(count):
        entry = entries[heap[1]]
        heads[i, 0], heads[i, 1], heads[i, 2], heads[i, 3] = heap[1], entry[E_ROW], entry[E_SHAPE], entry[E_BUCKET]
        heads[i, 4] = verdicts[entry[E_KNOWN], V_BY_QUOTA] == 1 and sleeps(entries, verdicts, heap[1])
        heap[0] -= 1
        if heap[0] > 0:
            sift(entries, heap, heap[heap[0] + 1])
    return int(count)
