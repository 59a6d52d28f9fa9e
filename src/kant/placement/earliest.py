"""The search for the earliest start of a group of pods beside all commitments.

For each kind of demand and class of durations the timeline keeps a *bound* for every node: no pod of that kind can
start there earlier, for as long as the shortest duration of the class. Commitments that are added only make
starts later, so bounds stay true without a touch; a node that was loosened is looked at anew. The search goes from
one possible moment to the next: the first at which, by what is known so far, enough pods might fit. It looks at
the nodes whose bound lies before that moment and learns what they take then, and when next they may take more.
So it looks at few nodes, and the moment that it ends with is the earliest there is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import (
    D_CPU,
    D_GPUS,
    D_MEMORY,
    D_MILLI,
    D_TAG,
    FREE,
    STATUS,
    Table,
    take_piece,
)
from kant.compiled import compiled, inlined
from kant.model.placement import WIDTH
from kant.placement.commitments import (
    L_GPUS,
    NEVER,
    admits,
    bits_in,
    first_start,
    free_throughout,
    mask_throughout,
    next_end,
    pods_throughout,
)
from kant.placement.fits import tightest

# --- slots: one for each demand and class of durations ------------------------------------------------------------
CURSOR = 0  # how far in the log of loosened nodes the bounds have come; -1: there are none yet
SINCE = 1  # the bounds speak of starts from this time on
SLOT_WIDTH = 2

BLOCK = 16
"""Nodes side by side whose least bound is kept: a search passes over those that have nothing to offer."""

SPARE = 16
"""Nodes met at first beyond those that are needed."""

# --- nodes that a search has met ----------------------------------------------------------------------------------
E_NODE = 0
E_PODS = 1  # pods that fit at the moment looked at
E_NEXT = 2  # after that, when one more does; NEVER where none does
ENTRY_WIDTH = 3


@inlined
def put(heap: Table, i: int, time: int, weight: int) -> None:
    heap[i, 0] = time
    heap[i, 1] = weight


@inlined
def offer(heap: Table, size: int, total: int, enough: int, time: int, weight: int) -> tuple[int, int]:
    """Add (time, weight) to a heap of the earliest times whose weights add up to `enough`, the latest on top."""
    i = size
    size += 1
    total += weight
    while i > 0 and heap[(i - 1) >> 1, 0] < time:
        put(heap, i, heap[(i - 1) >> 1, 0], heap[(i - 1) >> 1, 1])
        i = (i - 1) >> 1
    put(heap, i, time, weight)
    while total - heap[0, 1] >= enough:
        total -= heap[0, 1]
        size -= 1
        i, child = 0, 1
        while child < size:
            if child + 1 < size and heap[child + 1, 0] > heap[child, 0]:
                child += 1
            if heap[child, 0] <= heap[size, 0]:
                break
            put(heap, i, heap[child, 0], heap[child, 1])
            i, child = child, 2 * child + 1
        put(heap, i, heap[size, 0], heap[size, 1])
    return size, total


@inlined
def set_bound(bounds: Table, floors: Table, slot: int, node: int, bound: int) -> None:
    """Change a node's bound, and with it the least bound of the nodes beside it."""
    bounds[slot, node] = bound
    block = node // BLOCK
    floor = NEVER
    for other in range(block * BLOCK, min((block + 1) * BLOCK, bounds.shape[1])):
        floor = min(floor, bounds[slot, other])
    floors[slot, block] = floor


@inlined
def follow(bounds: Table, floors: Table, marks: Table, slot: int, log: Table, now: int) -> None:
    """Forget the bounds of nodes that were loosened; all of them, where they speak of later starts only."""
    ring = log.shape[0] - 1
    cursor = marks[slot, CURSOR]
    if cursor < 0 or log[0] - cursor > ring or now < marks[slot, SINCE]:
        bounds[slot, :] = 0
        floors[slot, :] = 0
    else:
        for k in range(cursor, log[0]):
            node = log[1 + k % ring]
            bounds[slot, node] = 0
            floors[slot, node // BLOCK] = 0
    marks[slot, CURSOR] = log[0]
    marks[slot, SINCE] = now


@inlined
def moment_of(entries: Table, count: int, most: int, missing: int, heap: Table) -> int:
    """The first moment at which the nodes met so far might take `missing` more pods; NEVER where they cannot."""
    size = total = 0
    for i in range(count):
        time, weight = entries[i, E_NEXT], most - entries[i, E_PODS]
        if time < NEVER and weight > 0 and (total < missing or time < heap[0, 0]):
            size, total = offer(heap, size, total, missing, time, weight)
    return int(heap[0, 0]) if total >= missing else NEVER


@inlined
def reach_of(
    bounds: Table, floors: Table, slot: int, met: NDArray[np.bool_], nodes: int, not_before: int, heap: Table
) -> int:
    """The time by which the bounds of `nodes` more nodes lie; NEVER where there are not so many."""
    if nodes == 0:
        return not_before
    size = total = 0
    for block in range(floors.shape[1]):
        floor = floors[slot, block]
        if floor >= NEVER or (total >= nodes and floor >= heap[0, 0]):
            continue
        for node in range(block * BLOCK, min((block + 1) * BLOCK, met.shape[0])):
            time = max(bounds[slot, node], not_before)
            if time < NEVER and (total < nodes or time < heap[0, 0]) and not met[node]:
                size, total = offer(heap, size, total, nodes, time, 1)
    return int(heap[0, 0]) if total >= nodes else NEVER


@inlined
def look(
    empty: Table, store: Table, ledgers: Table, demands: Table, d: int, duration: int, least: int,
    now: int, not_before: int, bounds: Table, floors: Table, slot: int, node: int, rows: Table,
) -> int:  # fmt: skip
    """When the node takes a pod for `duration` if it is in service then; its bound is made what it is by now."""
    bound = NEVER
    if admits(ledgers, node, demands, d):
        bound = first_start(empty, store, ledgers, node, demands, d, 1, max(bounds[slot, node], now), least, rows)
    if bound != bounds[slot, node]:
        set_bound(bounds, floors, slot, node, bound)
    return first_start(empty, store, ledgers, node, demands, d, 1, max(bound, not_before), duration, rows)


@compiled
def find_earliest(
    empty: Table, table: Table, store: Table, ledgers: Table, log: Table, demands: Table, d: int, count: int,
    most: int, duration: int, least: int, now: int, not_before: int, bounds: Table, floors: Table, marks: Table,
    slot: int, entries: Table, heap: Table, rows: Table,
) -> tuple[int, Table]:  # fmt: skip
    """The earliest start from `not_before` on of `count` pods of demand `d` for `duration`, and their pieces.

    `most` pods fit on the roomiest node; `least` is the shortest duration of the slot's class; bounds speak of
    starts from `now` on, which is not after `not_before`. NEVER and no pieces where they never fit.
    """
    follow(bounds, floors, marks, slot, log, now)
    met = np.zeros(empty.shape[0], dtype=np.bool_)
    known = placed = 0
    horizon = -1  # every node whose bound lay up to here has been met
    while True:
        start = moment_of(entries, known, most, count - placed, heap)
        if start > horizon and horizon < NEVER:
            # At most twice as many as are known, and at least some more: so the steps are few, and few nodes are met
            # in vain.
            more = (count + most - 1) // most + known + SPARE
            horizon = reach_of(bounds, floors, slot, met, more, not_before, heap)
            if start < horizon:
                horizon = max(start, reach_of(bounds, floors, slot, met, known // 8, not_before, heap))
            for block in range(floors.shape[1]):
                if floors[slot, block] > horizon:
                    continue
                for node in range(block * BLOCK, min((block + 1) * BLOCK, met.shape[0])):
                    if bounds[slot, node] > horizon or bounds[slot, node] >= NEVER or met[node]:
                        continue
                    met[node] = True
                    next_start = look(
                        empty, store, ledgers, demands, d, duration, least, now, not_before, bounds, floors,
                        slot, node, rows,
                    )  # fmt: skip
                    if next_start < NEVER:
                        entries[known, E_NODE] = node
                        entries[known, E_PODS] = 0
                        entries[known, E_NEXT] = next_start
                        known += 1
            continue
        if start >= NEVER:
            return NEVER, np.zeros((0, WIDTH), dtype=np.int64)
        placed = 0
        for i in range(known):
            if entries[i, E_NEXT] > start and entries[i, E_PODS] == 0:
                continue
            node = entries[i, E_NODE]
            if table[node, STATUS] != 0:
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
            return start, settle(empty, store, ledgers, demands, d, count, start, duration, entries, known, rows)


@inlined
def settle(
    empty: Table, store: Table, ledgers: Table, demands: Table, d: int, count: int, start: int, duration: int,
    entries: Table, known: int, rows: Table,
) -> Table:  # fmt: skip
    """Pieces for `count` pods at `start`: on the nodes with the least free, by index where that is equal.

    That is how much of their GPUs is free throughout; for pods of whole GPUs, how many GPUs wholly are.
    """
    nodes, until = empty.shape[0], start + duration
    shares = demands[d, D_TAG] == 0
    keys = np.zeros(known, dtype=np.int64)
    fitting = 0
    for i in range(known):
        if entries[i, E_PODS] > 0:
            node = entries[i, E_NODE]
            if shares:
                free_throughout(empty, store, ledgers, node, start, until, rows, 1)
                left = rows[1, FREE]
            else:
                left = ledgers[node, L_GPUS] - bits_in(mask_throughout(store, ledgers, node, start, until))
            keys[fitting] = (left * nodes + node) * known + i
            fitting += 1
    keys = np.sort(keys[:fitting])
    pieces = np.zeros((count if shares else min(count, fitting), WIDTH), dtype=np.int64)
    used = placed = 0
    for key in keys:
        node = entries[key % known, E_NODE]
        pods = min(entries[key % known, E_PODS], count - placed)
        placed += pods
        if shares:
            free_throughout(empty, store, ledgers, node, start, until, rows, 1)
            for _ in range(pods):
                lay(pieces, used, 1, 1, tightest(rows, 1, demands, d), demands, d)
                take_piece(rows, pieces[used])  # row 1 stands for the node
                pieces[used, 0] = node
                used += 1
        else:
            mask = mask_throughout(store, ledgers, node, start, until)
            lay(pieces, used, node, pods, first_idle(mask, pods * demands[d, D_GPUS]), demands, d)
            used += 1
        if placed == count:
            break
    return pieces[:used]


@inlined
def first_idle(mask: int, devices: int) -> int:
    """So many devices that are not in `mask`, the first of them, as bits."""
    idle = 0
    bit = 1
    while devices > 0:
        if mask & bit == 0:
            idle |= bit
            devices -= 1
        bit <<= 1
    return idle


@inlined
def lay(pieces: Table, row: int, node: int, pods: int, mask: int, demands: Table, d: int) -> None:
    """Write the piece of `pods` pods of demand `d` on a node."""
    pieces[row, 0] = node
    pieces[row, 1] = pods
    pieces[row, 2] = mask
    pieces[row, 3] = demands[d, D_MILLI] if demands[d, D_GPUS] > 0 else 0
    pieces[row, 4] = pods * demands[d, D_CPU]
    pieces[row, 5] = pods * demands[d, D_MEMORY]
    pieces[row, 6] = demands[d, D_TAG]
