"""The search for the earliest start of a group of pods around all commitments.

The calendar keeps a *bound* for every node (`lower_bounds.py`): no pod can start on it earlier. The search goes from
one possible time to the next. A possible time is the first at which enough pods might fit, as far as the bounds say. At
each such time it examines the nodes with a bound before that time: how many pods fit on them then, and when more may
fit. So it examines few nodes, and the time at which it ends is the earliest possible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.placement import WIDTH
from kant.placement.calendar.book import ANYWHERE, FULL, H_BEFORE, H_NODES, H_UNTIL, NODE_BITS, ONE_NODE, Book
from kant.placement.calendar.commitments import (
    L_GPUS,
    L_POOL,
    NEVER,
    first_start,
    free_throughout,
    freed_by,
    mask_throughout,
    most_pods,
    next_end,
    pods_throughout,
)
from kant.placement.calendar.in_order import in_order
from kant.placement.calendar.lower_bounds import (
    BLOCK,
    LOOKS,
    are_before,
    follow,
    lower_own,
    offer,
    reach_of,
    set_bound,
    slot_for,
)
from kant.placement.calendar.store import HIDDEN, set_start
from kant.placement.devices import closest, span
from kant.placement.fits import in_one_island, tightest
from kant.placement.pieces import write_piece
from kant.placement.slices import cut

SPARE = 4
"""Number of nodes examined at first beyond those that are needed."""

# --- nodes that a search has examined -----------------------------------------------------------------------------
E_NODE = 0
E_PODS = 1  # pods that fit at the time examined
E_NEXT = 2  # the next time at which one more pod fits; NEVER: none ever does
ENTRY_WIDTH = 3


@inlined
def moment_of(entries: Table, count: int, most: int, missing: int, heap: Table) -> int:
    """Return the first time at which `missing` more pods might fit on the examined nodes; NEVER if they cannot."""
    size = total = 0
    for i in range(count):
        time, weight = entries[i, E_NEXT], most - entries[i, E_PODS]
        if time < NEVER and weight > 0 and (total < missing or time < heap[0, 0]):
            size, total = offer(heap, size, total, missing, time, weight)
    return int(heap[0, 0]) if total >= missing else NEVER


@inlined
def is_outside(table: Table, node: int, column: int, domain: int) -> bool:
    """Return whether a node is outside the domain that a gang requires, given by its column of the node table."""
    return column != ANYWHERE and (node if column == ONE_NODE else table[node, column]) != domain


@inlined
def look(
    empty: Table, store: Table, ledgers: Table, demands: Table, d: int, duration: int, least: int, now: int,
    not_before: int, bounds: Table, floors: Table, slot: int, node: int, rows: Table,
) -> int:  # fmt: skip
    """Return when a pod fits on the node for `duration`, if the node is then in service. Updates the node's bound."""
    bound = NEVER
    if c.admits(demands, d, ledgers[node, L_POOL], node):
        bound = first_start(empty, store, ledgers, node, demands, d, 1, max(bounds[slot, node], now), least, rows)
    if bound != bounds[slot, node]:
        set_bound(bounds, floors, slot, node, bound)
    return first_start(empty, store, ledgers, node, demands, d, 1, max(bound, not_before), duration, rows)


@inlined
def followed_slot(book: Book, d: int, duration: int, now: int) -> tuple[int, int]:
    """Return the slot of a demand and a duration, with its bounds updated, and the shortest duration of its class. -1
    if room for more slots must be made first.
    """
    size = 0
    while duration >> (size + 1) > 0:
        size += 1
    least = 1 << size  # classes by powers of two: with finer ones more bounds would have to be computed
    slot = slot_for(book.slots, book.bounds, book.floors, book.marks, d, size)
    if slot >= 0:
        gpus = book.demands[d, c.D_GPUS]
        follow(book.bounds, book.floors, book.marks, slot, book.freed, book.taken, gpus, least, now)
    return slot, least


@inlined
def place_at(
    book: Book, store: Table, d: int, count: int, duration: int, now: int, start: int, column: int, domain: int,
    stale: NDArray[np.bool_],
) -> tuple[int, Table]:  # fmt: skip
    """Return `start` and the pieces of `count` pods of demand `d` that start then; NEVER and no pieces unless all fit.

    FULL as in `find_earliest`. Bounds of `stale` nodes are ignored.
    """
    empty, table, ledgers, demands, rows = book.empty, book.table, book.ledgers, book.demands, book.rows
    bounds, entries = book.bounds, book.entries
    slot, _ = followed_slot(book, d, duration, now)
    if slot < 0:
        return FULL, book.arena[:0]
    known = placed = 0
    for node in range(empty.shape[0]):
        if bounds[slot, node] > start and not stale[node]:
            continue
        if table[node, c.STATUS] != 0 or is_outside(table, node, column, domain):
            continue
        if c.admits(demands, d, ledgers[node, L_POOL], node):
            pods = pods_throughout(empty, store, ledgers, node, demands, d, count, start, start + duration, rows)
            if pods > 0:
                entries[known, E_NODE], entries[known, E_PODS] = node, pods
                known += 1
                placed += pods
    if placed < count:
        return NEVER, book.arena[:0]
    return start, settle(empty, store, ledgers, demands, d, count, now, start, duration, entries, known, rows)


@compiled
def find_earliest(
    book: Book, store: Table, d: int, count: int, duration: int, now: int, not_before: int, column: int, domain: int,
    limit: int, own: Table, key: int, began: int, ended: int,
) -> tuple[int, Table]:  # fmt: skip
    """Find the earliest start from `not_before` on, before `limit`, of `count` pods of demand `d` for `duration`.

    Returns the start and the pieces. Bounds apply to starts from `now` on, which is not after `not_before`. NEVER and
    no pieces if they never fit; FULL if room for more slots must be made first. The pieces `own`, which the
    commitment `key` holds in [began, ended), count as free. For `column` and `domain` see `is_outside`.
    """
    nothing = book.arena[:0]
    if book.most[d] < 0:
        book.most[d] = most_pods(book.empty, book.demands, d)
    most = min(book.most[d], count)
    if book.most[d] * book.empty.shape[0] < count:
        return NEVER, nothing
    slot, least = followed_slot(book, d, duration, now)
    if slot < 0:
        return FULL, nothing
    gpus, bounds, floors = book.demands[d, c.D_GPUS], book.bounds, book.floors
    hides = own.shape[0] > 0
    before = own[:, 0]
    if hides:
        set_start(store, book.ledgers, own, key, HIDDEN)
        before = lower_own(store, book.ledgers, bounds, floors, slot, own, gpus, least, began, ended)
    found = search(
        book, store, slot, d, count, most, duration, least, now, not_before, limit, column, domain
    )  # fmt: skip
    if hides:
        set_start(store, book.ledgers, own, key, began)
        for i in range(own.shape[0] - 1, -1, -1):
            set_bound(bounds, floors, slot, own[i, 0], before[i])
    return found


@inlined
def search(
    book: Book, store: Table, slot: int, d: int, count: int, most: int, duration: int, least: int, now: int,
    not_before: int, limit: int, column: int, domain: int,
) -> tuple[int, Table]:  # fmt: skip
    """Do the search of `find_earliest`, with bounds that are up to date."""
    empty, table, ledgers, demands, rows = book.empty, book.table, book.ledgers, book.demands, book.rows
    bounds, floors, marks, entries, heap = book.bounds, book.floors, book.marks, book.entries, book.heap
    if limit < NEVER and not are_before(bounds, floors, slot, (count + most - 1) // most, limit):
        return NEVER, book.arena[:0]
    met = np.zeros(empty.shape[0], dtype=np.bool_)
    known = placed = 0
    horizon = -1  # every node with a bound up to this time has been examined
    while True:
        start = moment_of(entries, known, most, count - placed, heap)
        if start > horizon and horizon < limit - 1:
            # Examine more nodes: about as many as have been examined, plus a few. So there are few steps, and few nodes
            # are examined in vain.
            more = (count + most - 1) // most + known + SPARE
            horizon = reach_of(bounds, floors, slot, met, more, not_before, heap)
            if start < horizon:
                horizon = max(start, reach_of(bounds, floors, slot, met, known // 8, not_before, heap))
            horizon = min(horizon, limit - 1)
            for block in range(floors.shape[1]):
                if floors[slot, block] > horizon:
                    continue
                for node in range(block * BLOCK, min((block + 1) * BLOCK, met.shape[0])):
                    if bounds[slot, node] > horizon or met[node]:
                        continue
                    met[node] = True
                    marks[slot, LOOKS] += 1
                    next_start = look(
                        empty, store, ledgers, demands, d, duration, least, now, not_before, bounds, floors, slot,
                        node, rows,
                    )  # fmt: skip
                    if next_start < NEVER:
                        entries[known, E_NODE] = node
                        entries[known, E_PODS] = 0
                        entries[known, E_NEXT] = next_start
                        known += 1
            continue
        if start >= limit:
            return NEVER, book.arena[:0]
        placed = 0
        for i in range(known):
            if entries[i, E_NEXT] > start and entries[i, E_PODS] == 0:
                continue
            node = entries[i, E_NODE]
            if table[node, c.STATUS] != 0 or is_outside(table, node, column, domain):
                entries[i, E_NEXT] = NEVER
                continue
            pods = pods_throughout(empty, store, ledgers, node, demands, d, most, start, start + duration, rows)
            placed += pods
            entries[i, E_PODS] = pods
            entries[i, E_NEXT] = NEVER
            if pods < most:
                later = next_end(store, ledgers, node, start)
                entries[i, E_NEXT] = first_start(
                    empty, store, ledgers, node, demands, d, pods + 1, later, duration, rows
                )
        if placed >= count:
            return start, settle(empty, store, ledgers, demands, d, count, now, start, duration, entries, known, rows)


@inlined
def settle(
    empty: Table, store: Table, ledgers: Table, demands: Table, d: int, count: int, now: int, start: int, duration: int,
    entries: Table, known: int, rows: Table,
) -> Table:  # fmt: skip
    """Return pieces for `count` pods at `start`: on the nodes freed last, then on those with the least free, by index.

    Capacity that is free from `now` on is taken last, to keep it for jobs that start before. A node's free capacity is
    the part of its GPUs that is free for all of `duration`; for pods of whole GPUs, the number of wholly free GPUs.
    """
    nodes, until = empty.shape[0], start + duration
    shares = demands[d, c.D_TAG] == 0
    keys = np.zeros(known, dtype=np.int64)
    fitting = 0
    for i in range(known):
        if entries[i, E_PODS] > 0:
            node = entries[i, E_NODE]
            if shares:
                free_throughout(empty, store, ledgers, node, start, until, demands, rows, 1)
                left = rows[1, c.FREE]
            else:
                left = ledgers[node, L_GPUS] - c.bits_in(mask_throughout(store, ledgers, node, start, until))
            keys[fitting] = (left * nodes + node) * known + i
            fitting += 1
    keys = keys[:fitting][in_order(keys[:fitting])]
    if start > now and fitting > 1:
        keys = last_freed_first(store, ledgers, entries, keys, known, start)
    pieces = np.zeros((count if shares else min(count, fitting), WIDTH), dtype=np.int64)
    used = placed = 0
    for key in keys:
        node = entries[key % known, E_NODE]
        pods = min(entries[key % known, E_PODS], count - placed)
        placed += pods
        if shares:
            free_throughout(empty, store, ledgers, node, start, until, demands, rows, 1)
            for _ in range(pods):
                write_piece(pieces, used, 1, 1, tightest(rows, 1, demands, d), demands, d)
                if demands[d, c.D_SLICES] > 0:
                    cut(rows, 1, demands, d, pieces[used])
                counted, pieces[used, 8] = pieces[used, 8], 0
                c.take_piece(rows, pieces[used], demands)  # row 1 is the node, without others of its domain
                pieces[used, 0], pieces[used, 8] = node, counted
                used += 1
        else:
            mask = mask_throughout(store, ledgers, node, start, until)
            idle, chosen, late = span(0, ledgers[node, L_GPUS]) & ~mask, 0, 0
            if start > now and not in_one_island(empty, node, demands, d):
                late = idle & freed_by(store, ledgers, node, start)[1]
            for _ in range(pods if demands[d, c.D_GPUS] > 0 else 0):
                enough = c.bits_in(late & ~chosen) >= demands[d, c.D_GPUS]
                chosen |= closest(empty, node, (late if enough else idle) & ~chosen, demands[d, c.D_GPUS])
            write_piece(pieces, used, node, pods, chosen, demands, d)
            used += 1
        if placed == count:
            break
    return pieces[:used]


@inlined
def settled_until(span: Table, store: Table, ledgers: Table, pieces: Table, start: int, end: int) -> None:
    """Lower H_UNTIL in `span` to the time until which `settle` chooses these pieces again, whatever starts before then.

    The choice depends on the last end of each node before `start` and, if devices are left over, on all its ends.
    """
    for i in range(pieces.shape[0]):
        node = pieces[i, 0]
        last, _ = freed_by(store, ledgers, node, start)
        span[H_BEFORE] = min(span[H_BEFORE], last)
        if c.bits_in(mask_throughout(store, ledgers, node, start, end)) < ledgers[node, L_GPUS]:
            span[H_NODES] |= 1 << (node % NODE_BITS)
            last = min(last, next_end(store, ledgers, node, 0))
        if last > 0:
            span[H_UNTIL] = min(span[H_UNTIL], last)


@inlined
def last_freed_first(store: Table, ledgers: Table, entries: Table, keys: Table, known: int, start: int) -> Table:
    """Return the sorted `keys` of entries; the nodes that are freed last before `start` come first."""
    freed = np.zeros(len(keys), dtype=np.int64)
    for k in range(len(keys)):
        freed[k] = -freed_by(store, ledgers, entries[keys[k] % known, E_NODE], start)[0]
    return keys[in_order(freed)]
