"""Bounds: for each node, demand and class of durations, the earliest time at which it is worth examining the node.

A bound says that no pod of that demand can start on the node before this time, for the shortest duration of the class.
Bounds are updated only from the rings of committed and freed spans (`store.py`), and are never too late. They may be
too early if several commitments together are in the way: examining the node corrects that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.compiled import inlined
from kant.placement.calendar.commitments import NEVER
from kant.placement.calendar.store import R_END, R_LEFT, R_NODE, R_RIGHT, R_START, gap_around

# --- slots: one for each demand and class of durations ------------------------------------------------------------
FREED = 0  # position of the bounds in the ring of freed spans; -1: no bounds yet
TAKEN = 1  # position in the ring of committed spans
SINCE = 2  # the bounds apply to starts from this time on
LOOKS = 3  # how often searches examined a node for this slot
SLOT_WIDTH = 4

SIZES = 64
"""Number of duration classes: class k begins at 2**k µs. It is also the number of columns of the table of slots."""

BLOCK = 16
"""Number of adjacent nodes of which the least bound is kept, so that a search can skip blocks without candidates."""


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
    """Set a node's bound, and update the least bound of its block."""
    block = node // BLOCK
    old = bounds[slot, node]
    bounds[slot, node] = bound
    if bound <= floors[slot, block]:
        floors[slot, block] = bound
    elif old == floors[slot, block]:
        floor = NEVER
        for other in range(block * BLOCK, min((block + 1) * BLOCK, bounds.shape[1])):
            floor = min(floor, bounds[slot, other])
        floors[slot, block] = floor


@inlined
def slot_for(slots: Table, bounds: Table, floors: Table, marks: Table, d: int, size: int) -> int:
    """Return the slot for the bounds of a demand and a duration class; -1: the caller must make more slots first.

    Row 0 of `slots` has the number of used slots, and 1 if more can be made; each other row has the slots of a demand.
    If all slots are used and no more can be made, all are dropped.
    """
    slot = slots[d + 1, size]
    if slot >= 0:
        return int(slot)
    if slots[0, 0] == bounds.shape[0]:
        if slots[0, 1] == 1:
            return -1
        slots[1:, :] = -1
        slots[0, 0] = 0
    slot = slots[0, 0]
    marks[slot, FREED] = -1
    for shorter in range(size):  # a start that is impossible for a shorter duration is impossible for a longer one
        known = slots[d + 1, shorter]
        if known >= 0:
            bounds[slot, :], floors[slot, :], marks[slot, :] = bounds[known, :], floors[known, :], marks[known, :]
    marks[slot, LOOKS] = 0
    slots[0, 0] += 1
    slots[d + 1, size] = slot
    return int(slot)


@inlined
def lowered(bound: int, gpus: int, least: int, start: int, left: int, right: int) -> int:
    """Return a bound, lowered since a span from `start` on was freed in the gap [left, right): pods may use it."""
    if gpus == 0:
        return min(bound, max(start - least + 1, 0))
    if right - left < least:
        return bound
    return min(bound, max(start - least + 1, left, 0))


@inlined
def follow(
    bounds: Table, floors: Table, marks: Table, slot: int, freed: Table, taken: Table, gpus: int, least: int, now: int
) -> None:
    """Update the bounds of a slot; reset them if they apply only to later starts, or are too far behind.

    Commitments are processed before freed spans, since some of these commitments may have been freed again.
    """
    ring = freed.shape[0] - 1
    cursor = marks[slot, FREED]
    if cursor < 0 or freed[0, 0] - cursor > ring or now < marks[slot, SINCE]:
        bounds[slot, :] = 0
        floors[slot, :] = 0
    else:
        if gpus > 0:
            for k in range(max(marks[slot, TAKEN], taken[0, 0] - ring), taken[0, 0]):
                row = 1 + k % ring
                bound = max(bounds[slot, taken[row, R_NODE]], now)
                if bound < taken[row, R_END] and taken[row, R_START] - bound < least:
                    set_bound(bounds, floors, slot, taken[row, R_NODE], taken[row, R_END])
        for k in range(cursor, freed[0, 0]):
            row = 1 + k % ring
            if freed[row, R_END] > now:
                node = freed[row, R_NODE]
                bound = lowered(
                    bounds[slot, node], gpus, least, freed[row, R_START], freed[row, R_LEFT], freed[row, R_RIGHT]
                )
                if bound < bounds[slot, node]:
                    set_bound(bounds, floors, slot, node, bound)
    marks[slot, FREED] = freed[0, 0]
    marks[slot, TAKEN] = taken[0, 0]
    marks[slot, SINCE] = now


@inlined
def lower_own(
    store: Table, ledgers: Table, bounds: Table, floors: Table, slot: int, own: Table, gpus: int, least: int,
    began: int, ended: int,
) -> Table:  # fmt: skip
    """Set the bounds of the nodes of `own` to their values without `own`; return the old bounds."""
    before = np.zeros(own.shape[0], dtype=np.int64)
    for i in range(own.shape[0]):
        node = own[i, 0]
        before[i] = bounds[slot, node]
        left, right = gap_around(store, ledgers, node, began, ended)
        set_bound(bounds, floors, slot, node, lowered(before[i], gpus, least, began, left, right))
    return before


@inlined
def reach_of(
    bounds: Table, floors: Table, slot: int, met: NDArray[np.bool_], nodes: int, not_before: int, heap: Table
) -> int:
    """Return the earliest time up to which `nodes` nodes outside `met` have their bounds; NEVER: there are too few."""
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
def are_before(bounds: Table, floors: Table, slot: int, nodes: int, limit: int) -> bool:
    """Return whether the bounds of at least `nodes` nodes lie before `limit`."""
    found = 0
    for block in range(floors.shape[1]):
        if floors[slot, block] < limit:
            for node in range(block * BLOCK, min((block + 1) * BLOCK, bounds.shape[1])):
                if bounds[slot, node] < limit:
                    found += 1
            if found >= nodes:
                return True
    return False
