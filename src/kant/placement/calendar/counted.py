"""GPUs over time as a plain count: when enough of them are free at the same time, on any nodes.

Backfilling is defined on such counts (A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001). If every node has one
GPU, a gang fits when the count suffices and reservations may move. On other nodes the count is a necessary condition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import STATUS, Table, bits_in
from kant.compiled import compiled, inlined
from kant.model.units import GPU
from kant.placement.calendar.commitments import (
    C_END,
    C_MASK,
    C_MILLI,
    C_START,
    L_COUNT,
    L_FIRST,
    L_GPUS,
    L_POOL,
    NEVER,
)
from kant.placement.calendar.in_order import in_order

Column = NDArray[np.int64]

# --- steps: one row for each time at which commitments begin or end ------------------------------------------------
T_TIME = 0
T_FREE = 1  # milli-GPUs from then on


@inlined
def _change(times: Column, changes: Column, known: Column, used: int, time: int, by: int) -> int:
    """Add a change to the row of its time, which the hash table `known` finds. Returns the number of rows used."""
    at = time % known.shape[0]
    while known[at] > 0 and times[known[at]] != time:
        at = (at + 1) % known.shape[0]
    if known[at] == 0:
        known[at], times[used] = used, time
        used += 1
    changes[known[at]] += by
    return used


@compiled
def count_steps(table: Table, store: Table, ledgers: Table, pools: int, now: int) -> Table:
    """Return the free capacity over time of the nodes of `pools` (bits) that are in service, from `now` on.

    Commitments that have begun by `now` count from time 0 on.
    """
    rows = 1
    for node in range(table.shape[0]):
        if table[node, STATUS] == 0 and (pools >> ledgers[node, L_POOL]) & 1:
            rows += 2 * ledgers[node, L_COUNT]
    times = np.zeros(rows, dtype=np.int64)
    changes = np.zeros(rows, dtype=np.int64)
    known = np.zeros(2 * rows + (3 if rows % 5 == 2 else 1), dtype=np.int64)  # odd and no multiple of 5
    used = 1
    for node in range(table.shape[0]):
        if table[node, STATUS] != 0 or not (pools >> ledgers[node, L_POOL]) & 1:
            continue
        changes[0] += GPU * ledgers[node, L_GPUS]
        first = ledgers[node, L_FIRST]
        for row in range(first, first + ledgers[node, L_COUNT]):
            if store[row, C_END] <= now:
                continue
            taken = bits_in(store[row, C_MASK]) * store[row, C_MILLI]
            if store[row, C_START] <= now:
                changes[0] -= taken
            else:
                used = _change(times, changes, known, used, store[row, C_START], -taken)
            used = _change(times, changes, known, used, store[row, C_END], taken)
    order = in_order(times[:used])
    steps = np.zeros((used, 2), dtype=np.int64)
    free = 0
    for k in range(used):
        free += changes[order[k]]
        steps[k, T_TIME] = times[order[k]]
        steps[k, T_FREE] = free
    return steps


@compiled
def count_again(
    table: Table, ledgers: Table, pools: int, steps: Table, pieces: Table, start: int, end: int, sign: int
) -> Table:
    """Return the steps once `pieces` are committed over [start, end) (sign -1), or no longer are (1)."""
    change = 0
    for i in range(pieces.shape[0]):
        if table[pieces[i, 0], STATUS] == 0 and (pools >> ledgers[pieces[i, 0], L_POOL]) & 1:
            change += sign * bits_in(pieces[i, 2]) * pieces[i, 3]
    if change == 0:
        return steps
    found = np.zeros((steps.shape[0] + 2, 2), dtype=np.int64)
    used = free = 0
    begun = ended = False
    for k in range(steps.shape[0]):
        time = steps[k, T_TIME]
        if not begun and time >= start:
            begun = True
            if time > start:
                found[used, T_TIME], found[used, T_FREE] = start, free + change
                used += 1
        if not ended and time >= end:
            ended = True
            if time > end:
                found[used, T_TIME], found[used, T_FREE] = end, free
                used += 1
        free = steps[k, T_FREE]
        found[used, T_TIME], found[used, T_FREE] = time, free + (change if start <= time < end else 0)
        used += 1
    if not begun:
        found[used, T_TIME], found[used, T_FREE] = start, free + change
        used += 1
    if not ended:
        found[used, T_TIME], found[used, T_FREE] = end, free
        used += 1
    return found[:used]


@compiled
def first_count(steps: Table, wanted: int, duration: int, now: int, own: int, began: int, ended: int) -> int:
    """Return the first time from `now` on at which `wanted` milli-GPUs are free for `duration`; NEVER: none.

    `own` milli-GPUs are counted as free over [began, ended).
    """
    since = -1
    for k in range(steps.shape[0]):
        time = steps[k, T_TIME]
        if since >= 0 and time - since >= duration:
            break
        if k + 1 < steps.shape[0] and steps[k + 1, T_TIME] <= now:
            continue
        free = steps[k, T_FREE] + (own if began <= time < ended else 0)
        if free < wanted:
            since = -1
        elif since < 0:
            since = max(time, now)
    return since if since >= 0 else NEVER
