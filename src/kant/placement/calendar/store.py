"""Ledgers: commit spans, release them, and log both for the bounds that depend on them.

There are two rings of time spans on nodes: committed and freed ones. A freed span [start, end) is logged with the gap
around it: from the end of the last commitment before it that uses all GPUs of the node to the start of the first such
commitment after it. No new window for a pod with GPUs extends beyond this gap. So for a pod that needs a longer or an
earlier window nothing has changed.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table, bits_in, copy_row, slices_of
from kant.compiled import compiled, inlined
from kant.placement.calendar.book import H_COUNT, H_END, H_FIRST, H_START
from kant.placement.calendar.commitments import (
    C_COUNTED,
    C_CPU,
    C_END,
    C_KEY,
    C_MASK,
    C_MEMORY,
    C_MILLI,
    C_PODS,
    C_SLICES,
    C_START,
    L_CHANGE,
    L_COUNT,
    L_FIRST,
    L_GPUS,
    L_ROOM,
)

# --- rows of a ring: row 0 counts spans in column 0 and commitments in column 1, the rest are spans -------------------
R_NODE = 0
R_START = 1
R_END = 2
R_LEFT = 3  # of the gap around the span; only for freed spans
R_RIGHT = 4
RING_WIDTH = 5

HIDDEN = (1 << 63) - 1
"""Later than the end of any window: the start of a commitment that is ignored."""


def make_ring(nodes: int) -> Table:
    """Return an empty ring that holds at least the last `4 * nodes` spans."""
    return np.zeros((1 + max(1 << (4 * nodes - 1).bit_length(), 64), RING_WIDTH), dtype=np.int64)


@inlined
def note_span(ring: Table, node: int, start: int, end: int, left: int, right: int) -> None:
    row = 1 + ring[0, 0] % (ring.shape[0] - 1)
    ring[row, R_NODE] = node
    ring[row, R_START] = start
    ring[row, R_END] = end
    ring[row, R_LEFT] = left
    ring[row, R_RIGHT] = right
    ring[0, 0] += 1


@inlined
def resettled(store: Table, used: Table, ledgers: Table) -> Table:
    """Return a new store with all ledgers, each with space to double. Rows that belong to no ledger are dropped."""
    rows = 0
    for node in range(ledgers.shape[0]):
        rows += max(2 * ledgers[node, L_COUNT], 4)
    target = np.zeros((2 * rows + 64, store.shape[1]), dtype=np.int64)
    used[0] = 0
    for node in range(ledgers.shape[0]):
        ledger = ledgers[node]
        for k in range(ledger[L_COUNT]):
            copy_row(store, ledger[L_FIRST] + k, target, used[0] + k)
        ledger[L_FIRST], ledger[L_ROOM] = used[0], max(2 * ledger[L_COUNT], 4)
        used[0] += ledger[L_ROOM]
    return target


@compiled
def commit(
    store: Table, used: Table, ledgers: Table, taken: Table, pieces: Table, key: int, start: int, end: int
) -> Table:
    """Commit `pieces`. Returns the store, which is a new one if the old one was full.

    Commitments that use all GPUs of a node are logged in the ring `taken`.
    """
    for i in range(pieces.shape[0]):
        ledger = ledgers[pieces[i, 0]]
        if ledger[L_COUNT] == ledger[L_ROOM]:
            room = max(2 * ledger[L_COUNT], 4)
            if used[0] + room > store.shape[0]:
                store = resettled(store, used, ledgers)
            if ledger[L_COUNT] == ledger[L_ROOM]:
                for k in range(ledger[L_COUNT]):
                    copy_row(store, ledger[L_FIRST] + k, store, used[0] + k)
                ledger[L_FIRST], ledger[L_ROOM] = used[0], room
                used[0] += room
        first = ledger[L_FIRST]
        row = first + ledger[L_COUNT]
        while row > first and store[row - 1, C_END] > end:
            copy_row(store, row - 1, store, row)
            row -= 1
        store[row, C_START] = start
        store[row, C_END] = end
        store[row, C_MASK] = pieces[i, 2]
        store[row, C_MILLI] = pieces[i, 3]
        store[row, C_CPU] = pieces[i, 4]
        store[row, C_MEMORY] = pieces[i, 5]
        store[row, C_KEY] = key
        store[row, C_SLICES] = slices_of(pieces[i, 6])
        store[row, C_COUNTED] = pieces[i, 8]
        store[row, C_PODS] = pieces[i, 1]
        ledger[L_COUNT] += 1
        ledger[L_CHANGE] = -1
        taken[0, 1] += 1
        if takes_all(store, row, ledger[L_GPUS]):
            note_span(taken, pieces[i, 0], start, end, start, end)
    return store


@inlined
def version_of(freed: Table, taken: Table) -> int:
    """Return a number that grows with each change of the commitments, except for tentative ones."""
    return int(freed[0, 0] + taken[0, 1])


@inlined
def takes_all(store: Table, row: int, gpus: int) -> bool:
    """Return whether a commitment takes all of the node's GPUs wholly."""
    return bool(gpus > 0 and store[row, C_MILLI] == 1000 and bits_in(store[row, C_MASK]) == gpus)


@inlined
def gap_around(store: Table, ledgers: Table, node: int, start: int, end: int) -> tuple[int, int]:
    """Return the gap around [start, end) in which no commitment uses all GPUs of the node; its end may be HIDDEN."""
    left, right = 0, HIDDEN
    first = ledgers[node, L_FIRST]
    for row in range(first, first + ledgers[node, L_COUNT]):
        if store[row, C_END] <= start:
            if takes_all(store, row, ledgers[node, L_GPUS]):
                left = store[row, C_END]  # they are in the order of their ends
        elif end <= store[row, C_START] < right and takes_all(store, row, ledgers[node, L_GPUS]):
            right = store[row, C_START]
    return left, right


@compiled
def release(store: Table, ledgers: Table, freed: Table, pieces: Table, key: int, logs: bool) -> None:
    """Remove what `key` holds on the nodes of `pieces`. With `logs`, freed nodes are written to the ring `freed`."""
    for i in range(pieces.shape[0]):
        ledger = ledgers[pieces[i, 0]]
        start = end = 0
        first = kept = ledger[L_FIRST]
        for row in range(first, first + ledger[L_COUNT]):
            if store[row, C_KEY] == key:
                start, end = store[row, C_START], store[row, C_END]
            else:
                if kept != row:
                    copy_row(store, row, store, kept)
                kept += 1
        if kept - first != ledger[L_COUNT]:
            ledger[L_COUNT] = kept - first
            ledger[L_CHANGE] = -1
            if logs:
                left, right = gap_around(store, ledgers, pieces[i, 0], start, end)
                note_span(freed, pieces[i, 0], start, end, left, right)


@inlined
def set_key(store: Table, ledgers: Table, pieces: Table, key: int, to_key: int) -> None:
    """Give the spans of `key` on the nodes of `pieces` another key."""
    for i in range(pieces.shape[0]):
        first = ledgers[pieces[i, 0], L_FIRST]
        for row in range(first, first + ledgers[pieces[i, 0], L_COUNT]):
            if store[row, C_KEY] == key:
                store[row, C_KEY] = to_key


@compiled
def enter(
    store: Table, used: Table, ledgers: Table, taken: Table, spans: Table, arena: Table, pieces: Table, held: Table,
    key: int, start: int, end: int,
) -> Table:  # fmt: skip
    """Commit the pieces of a job, and record them in its span and the arena. `pieces` counts the arena's used rows."""
    if key >= 0:
        first, count = pieces[0], held.shape[0]
        arena[first : first + count] = held
        spans[key, H_FIRST], spans[key, H_COUNT], spans[key, H_START], spans[key, H_END] = first, count, start, end
        pieces[0] += count
    return commit(store, used, ledgers, taken, held, key, start, end)


@compiled
def strike(store: Table, ledgers: Table, freed: Table, spans: Table, pieces: Table, key: int, logs: bool) -> None:
    """Release the pieces of a job, and clear its span."""
    if key >= 0:
        spans[key, H_COUNT] = 0
    release(store, ledgers, freed, pieces, key, logs)


@inlined
def set_start(store: Table, ledgers: Table, pieces: Table, key: int, start: int) -> None:
    """Set the start of all commitments of `key` on the nodes of `pieces`; HIDDEN: they are ignored."""
    for i in range(pieces.shape[0]):
        first = ledgers[pieces[i, 0], L_FIRST]
        for row in range(first, first + ledgers[pieces[i, 0], L_COUNT]):
            if store[row, C_KEY] == key and store[row, C_START] != start:
                store[row, C_START] = start
                break  # there is one row for each piece
