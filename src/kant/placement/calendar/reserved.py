"""Whether reservations hold, and what must stay free now so that they do."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.placement.calendar.commitments import (
    C_COUNTED,
    C_END,
    C_MASK,
    C_PODS,
    C_SLICES,
    C_START,
    L_CHANGE,
    L_COUNT,
    L_FIRST,
    L_RISE,
    NEVER,
    committed_at,
    free_throughout,
)


@compiled
def all_hold(
    empty: Table, table: Table, store: Table, ledgers: Table, pieces: Table, start: int, end: int, demands: Table,
    rows: Table,
) -> bool:  # fmt: skip
    """Return whether all nodes of committed `pieces` are in service and not overcommitted in [start, end)."""
    for i in range(pieces.shape[0]):
        node = pieces[i, 0]
        if table[node, c.STATUS] != 0:
            return False
        slices = c.slices_of(pieces[i, 6])
        alone = _is_alone(store, ledgers, node, pieces[i, 2], slices, start, end)
        if slices > 0 and not alone:
            return False
        if pieces[i, 4] == 0 and pieces[i, 5] == 0 and alone and pieces[i, 8] == 0:
            continue
        free_throughout(empty, store, ledgers, node, start, end, demands, rows, 1)
        if pieces[i, 8] > 0 and not _counts_hold(rows, demands, pieces[i, 8] - 1):
            return False
        for device in range(c.devices_of(empty)):
            if (pieces[i, 2] >> device) & 1 and rows[1, c.DEVICES + device] < 0:
                return False
        if (pieces[i, 4] > 0 and rows[1, c.CPU_FREE] < 0) or (pieces[i, 5] > 0 and rows[1, c.MEMORY_FREE] < 0):
            return False
    return True


@inlined
def _counts_hold(rows: Table, demands: Table, d: int) -> bool:
    """Return whether row 1, with the pods of a demand on it, satisfies the demand's limits for its own node."""
    for entry in range(demands[d, c.D_ENTRIES]):
        at = c.DEMAND_WIDTH + c.ENTRY_WIDTH * entry
        if (
            demands[d, at + c.N_TOPOLOGY] < 0
            and rows[1, c.extra_at(rows) + demands[d, at + c.N_COLUMN]] + demands[d, at + c.N_LIMIT] < 0
        ):
            return False
    return True


@inlined
def _is_alone(store: Table, ledgers: Table, node: int, mask: int, slices: int, start: int, end: int) -> bool:
    """Return whether at most one commitment uses part of these devices, or of these slices of them, in [start, end).

    A single commitment always fits on them.
    """
    found = 0
    first = ledgers[node, L_FIRST]
    for row in range(first, first + ledgers[node, L_COUNT]):
        touches = store[row, C_MASK] & mask != 0 and (slices == 0 or store[row, C_SLICES] & slices != 0)
        if touches and store[row, C_START] < end and store[row, C_END] > start:
            found += 1
    return found <= 1


@inlined
def _note_rise(store: Table, ledgers: Table, node: int, now: int, demands: Table, rows: Table) -> None:
    """Record when more GPUs, CPU or memory of the node will be committed than now, and until when this is valid."""
    first = ledgers[node, L_FIRST]
    last = first + ledgers[node, L_COUNT]
    rise = change = NEVER
    committed_at(store, first, last, now, demands, rows, 0)
    for row in range(first, last):
        start, end = store[row, C_START], store[row, C_END]
        if end > now:
            change = min(change, end)
        if start <= now:
            continue
        change = min(change, start)
        if start < rise:
            committed_at(store, first, last, start, demands, rows, 1)
            more = rows[1, c.CPU_FREE] > rows[0, c.CPU_FREE] or rows[1, c.MEMORY_FREE] > rows[0, c.MEMORY_FREE]
            for column in range(c.DEVICES, c.DEVICES + c.devices_of(rows)):
                more = more or rows[1, column] > rows[0, column]
            for column in range(c.slices_at(rows), c.slices_at(rows) + c.devices_of(rows)):
                more = more or rows[1, column] & ~rows[0, column] != 0
            if more or store[row, C_COUNTED] > 0:
                rise = start
    ledgers[node, L_RISE] = rise
    ledgers[node, L_CHANGE] = change


@compiled
def promised(
    empty: Table, table: Table, store: Table, ledgers: Table, now: int, until: int, demands: Table, rows: Table,
    pieces: Table,
) -> int:  # fmt: skip
    """Write to `pieces` the capacity that is free now but not throughout [now, until), on nodes in service.

    Returns the number of rows used, or -1 if `pieces` is too short. A node needs a row for each distinct amount that is
    missing on its devices.
    """
    used = 0
    slots = c.devices_of(empty)
    for node in range(empty.shape[0]):
        if ledgers[node, L_COUNT] == 0 or (ledgers[node, L_CHANGE] > now and ledgers[node, L_RISE] >= until):
            continue
        if ledgers[node, L_CHANGE] <= now:
            _note_rise(store, ledgers, node, now, demands, rows)
        if ledgers[node, L_RISE] >= until or table[node, c.STATUS] != 0:
            continue
        free_throughout(empty, store, ledgers, node, now, now + 1, demands, rows, 1)
        free_throughout(empty, store, ledgers, node, now, until, demands, rows, 3)
        if used + slots + 1 + ledgers[node, L_COUNT] > pieces.shape[0]:
            return -1
        begin = used
        _open_piece(pieces, used, node)
        pieces[used, 4] = _lacking(rows, c.CPU_FREE)
        pieces[used, 5] = _lacking(rows, c.MEMORY_FREE)
        for column in range(c.DEVICES, c.DEVICES + slots):
            lack = _lacking(rows, column)
            if empty[node, c.MIG] > 0:
                used = _promised_slices(rows, empty[node, c.MIG], node, column - c.DEVICES, begin, used, pieces)
                continue
            if lack == 0:
                continue
            row = begin
            while row < used and pieces[row, 3] != lack:
                row += 1
            if row > begin and row == used:
                _open_piece(pieces, row, node)
            pieces[row, 2] |= 1 << (column - c.DEVICES)
            pieces[row, 3] = lack
            used = max(used, row + 1)
        if used == begin and (pieces[used, 4] > 0 or pieces[used, 5] > 0):
            used += 1
        first = ledgers[node, L_FIRST]
        for row in range(first, first + ledgers[node, L_COUNT]):  # count pods now that will count on the node later
            if store[row, C_COUNTED] > 0 and now < store[row, C_START] < until:
                _open_piece(pieces, used, node)
                pieces[used, 1], pieces[used, 8] = store[row, C_PODS], store[row, C_COUNTED]
                used += 1
    return used


@inlined
def _promised_slices(rows: Table, milli: int, node: int, device: int, begin: int, used: int, pieces: Table) -> int:
    """Write a piece for the slices of a device that are free in row 1 but not in row 3; return the rows used."""
    column = c.slices_at(rows) + device
    slices = rows[3, column] & ~rows[1, column]
    if slices == 0:
        return used
    if used > begin:
        _open_piece(pieces, used, node)
    pieces[used, 2] = 1 << device
    pieces[used, 3] = milli * c.bits_in(slices)
    pieces[used, 6] = -1 - slices
    return used + 1


@inlined
def _lacking(rows: Table, column: int) -> int:
    """Return the amount that is free in row 1 but not in row 3."""
    return int(max(rows[1, column] - max(rows[3, column], 0), 0))


@inlined
def _open_piece(pieces: Table, row: int, node: int) -> None:
    """Write an empty piece that belongs to no pod."""
    pieces[row, :] = 0
    pieces[row, 0] = node
    pieces[row, 1] = 1
    pieces[row, 6] = -1
