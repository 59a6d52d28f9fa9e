"""Moves reservations to other devices at the same starts, to make room for one more job. This module also checks all
reservations in queue order, and moves each to an earlier start if there is one.

A reservation fixes a time; its devices may change as long as no reservation starts later. On nodes with one GPU each, a
gang fits if the count of free GPUs suffices, once the reservations that begin later choose devices again in order of
start. On other nodes this is a heuristic: it may miss a placement that other choices would leave possible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Narrow, Table
from kant.compiled import compiled, inlined
from kant.model.placement import NODE
from kant.model.units import FOREVER, GPU
from kant.placement.calendar.book import (
    ANYWHERE,
    FULL,
    G_COLUMN,
    G_ELASTIC,
    G_FIRST,
    G_MILLI,
    G_PARTS,
    G_POOLS,
    H_BEFORE,
    H_COUNT,
    H_END,
    H_FAILED,
    H_FIRST,
    H_MOVED,
    H_NODES,
    H_OPENED,
    H_START,
    H_UNTIL,
    H_VERSION,
    NODE_BITS,
    Q_DEMAND,
    Q_PODS,
    Book,
)
from kant.placement.calendar.commitments import (
    C_END,
    C_KEY,
    C_MASK,
    C_START,
    L_COUNT,
    L_FIRST,
    L_GPUS,
    NEVER,
)
from kant.placement.calendar.counted import first_count
from kant.placement.calendar.earliest_start import find_earliest, followed_slot, settled_until
from kant.placement.calendar.gangs import place_somewhere
from kant.placement.calendar.no_room import N_INSISTS, had_no_room, note
from kant.placement.calendar.reserved import all_hold
from kant.placement.calendar.store import HIDDEN, RING_WIDTH, commit, release, set_key, set_start, version_of

# --- reservations that may move, in the order of their starts ---------------------------------------------------------
M_ROW = 0
M_GANG = 1  # row of the job's gang; below zero: the reservation may not move
M_CHANGED = 2  # 1: the reservation has moved
M_FIRST = 3  # row of `arena` with its new pieces
M_COUNT = 4
MOVE_WIDTH = 5

NEW = -(1 << 40)
"""`NEW` minus the row of a job is the key of the job's tentative commitment, which it has beside its present one."""

NOWHERE = -2
"""In place of a start: the job cannot be placed at that time, whichever reservations move."""

# --- results of `first_sooner` -------------------------------------------------------------------------------------
ASKED = 0  # undecided: this job must be handled in another way; or all rows are done
SOONER = 1  # the job can start earlier
MADE_WAY = 2  # the job can start earlier, since other reservations have moved
KEPT = 3  # the job keeps its reservation, and its wait is not recorded yet
ELSEWHERE = 4  # the free GPUs of the job's pools must be counted first


@inlined
def held_by(spans: Table, arena: Table, row: int) -> Table:
    first = spans[row, H_FIRST]
    return arena[first : first + spans[row, H_COUNT]]


@inlined
def pools_of(table: Table, pieces: Table) -> int:
    pools = 0
    for i in range(pieces.shape[0]):
        pools |= 1 << table[pieces[i, 0], c.POOL]
    return pools


@inlined
def has_place(
    book: Book, store: Table, row: int, gang: int, duration: int, start: int, now: int, stale: NDArray[np.bool_]
) -> bool:
    """Return False if a job certainly cannot start at `start`, even without the commitments that begin then or later.

    Only a gang of one group with whole GPUs is checked, against the devices of all nodes, in service or not.
    """
    demands, bounds, ledgers = book.demands, book.bounds, book.ledgers
    first = book.gangs[gang, G_FIRST]
    d, count = book.parts[first, Q_DEMAND], book.parts[first, Q_PODS]
    if book.gangs[gang, G_PARTS] != 1 or demands[d, c.D_GPUS] == 0 or demands[d, c.D_MILLI] != GPU:
        return True
    slot, _ = followed_slot(book, d, duration, now)
    pods = 0
    for node in range(stale.shape[0] if slot >= 0 else 0):
        if bounds[slot, node] > start and not stale[node]:
            continue
        first, mask = ledgers[node, L_FIRST], 0
        for k in range(first + ledgers[node, L_COUNT] - 1, first - 1, -1):
            if store[k, C_END] <= start:
                break  # commitments are in the order of their ends
            if store[k, C_START] < start and store[k, C_KEY] != row:
                mask |= store[k, C_MASK]
        pods += (ledgers[node, L_GPUS] - c.bits_in(mask)) // demands[d, c.D_GPUS]
        if pods >= count:
            return True
    return slot < 0


@compiled
def make_way(
    book: Book, store: Table, moves: Table, row: int, gang: int, duration: int, start: int, now: int
) -> tuple[int, Table, Table]:
    """Find devices for a job at `start`; the reservations in `moves` that begin no earlier may move for it.

    Returns `start`, the job's pieces and the store. Instead of `start`: NEVER if the job does not fit, NOWHERE if it
    would not fit even without the later reservations, or FULL; then nothing has moved. Moved reservations are marked in
    `moves`, with their new pieces in the arena. The devices that the job held are released.
    """
    spans, arena, ledgers = book.spans, book.arena, book.ledgers
    empty, table, demands, rows, used, freed, gangs = (
        book.empty,
        book.table,
        book.demands,
        book.rows,
        book.used,
        book.freed,
        book.gangs,
    )
    at, placed = book.pieces[0], 0
    failed = spans[row]
    failed[H_VERSION], failed[H_FAILED], failed[H_UNTIL] = version_of(freed, book.taken), start, NEVER
    failed[H_BEFORE], failed[H_NODES] = start + 1, 0
    unread = np.zeros((2, RING_WIDTH), dtype=np.int64)  # nobody reads it: bounds ignore tentative commitments
    stale = np.zeros(empty.shape[0], dtype=np.bool_)
    for k in range(moves.shape[0]):
        moves[k, M_CHANGED] = 0
        other = moves[k, M_ROW]
        if other == row or spans[other, H_START] >= start:
            stale[held_by(spans, arena, other)[:, NODE]] = True
    if not has_place(book, store, row, gang, duration, start, now, stale):
        return NOWHERE, book.arena[:0], store
    for k in range(moves.shape[0]):
        other = moves[k, M_ROW]
        if other == row or spans[other, H_START] >= start:
            set_start(store, ledgers, held_by(spans, arena, other), other, HIDDEN)
    made, pieces, store = place_somewhere(book, store, gang, duration, now, start, stale)
    if made == start:
        end = min(start + duration, FOREVER)
        store = commit(store, used, ledgers, unread, pieces, NEW - row, start, end)
        settled_until(failed, store, ledgers, pieces, start, end)
        while placed < moves.shape[0]:
            move = moves[placed]
            other = move[M_ROW]
            began, ended = spans[other, H_START], spans[other, H_END]
            if other != row and began >= start:
                old = held_by(spans, arena, other)
                set_start(store, ledgers, old, other, began)
                if not all_hold(empty, table, store, ledgers, old, began, ended, demands, rows):
                    set_start(store, ledgers, old, other, HIDDEN)
                    made = NEVER
                    if move[M_GANG] >= 0 and gangs[move[M_GANG], G_POOLS] & pools_of(table, old):
                        length = ended - began
                        made, new, store = place_somewhere(book, store, move[M_GANG], length, now, began, stale)
                    if made != began:
                        break
                    move[M_CHANGED], move[M_FIRST], move[M_COUNT] = 1, at, new.shape[0]
                    arena[at : at + new.shape[0]] = new
                    at += new.shape[0]
                    store = commit(store, used, ledgers, unread, new, NEW - other, began, ended)
                    settled_until(failed, store, ledgers, new, began, ended)
            placed += 1
        if placed == moves.shape[0]:
            made = start
        release(store, ledgers, freed, pieces, NEW - row, False)
    for k in range(moves.shape[0]):
        other, first, count = moves[k, M_ROW], moves[k, M_FIRST], moves[k, M_COUNT]
        stays = k < placed and moves[k, M_CHANGED] == 0  # the reservation has its former start again
        if other == row or (spans[other, H_START] >= start and not stays):
            old, new = held_by(spans, arena, other), arena[first : first + count]
            set_start(store, ledgers, old, other, spans[other, H_START])
            if made == start and (other == row or moves[k, M_CHANGED] == 1):
                release(store, ledgers, freed, old, other, True)
                spans[other, H_COUNT] = 0
            if moves[k, M_CHANGED] == 1 and made == start:
                set_key(store, ledgers, new, NEW - other, other)
                spans[other, H_FIRST], spans[other, H_COUNT] = first, count
            elif moves[k, M_CHANGED] == 1:
                release(store, ledgers, freed, new, NEW - other, False)
    if made in (start, FULL):
        failed[H_UNTIL] = 0
    if made == start:
        book.pieces[0] = at
        return made, pieces, store
    return made if made == FULL else NEVER, book.arena[:0], store


@compiled
def keep_failures(book: Book, rows: Table, version: int, pieces: Table, end: int) -> None:
    """Keep the recorded failures of `make_way` that do not depend on `pieces`, committed since `version` until `end`.

    `end` -1: nothing was committed since `version`.
    """
    nodes, current = 0, version_of(book.freed, book.taken)
    for i in range(pieces.shape[0]):
        nodes |= 1 << (pieces[i, NODE] % NODE_BITS)
    for row in rows:
        span = book.spans[row]
        if span[H_VERSION] == version and end < span[H_BEFORE] and (end < 0 or span[H_NODES] & nodes == 0):
            span[H_VERSION] = current


@compiled
def first_sooner(
    book: Book, store: Table, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, given: int,
    steps: Table, pools: int, moves: Table, attempts: Table, now: int, opened: int,
) -> tuple[int, int, int, Table, Table]:  # fmt: skip
    """Return the first of `rows` from `at` on that has a result: its position, the result, its start and pieces, and
    the store. The jobs before it keep their reservations.

    The result is ASKED for a job of several groups, or in a required domain, or whose reservation is not as long as
    planned (`planned_run`; `given` if 0 or more). Column `by` of `recorded` marks jobs whose wait is recorded. `steps`
    counts the free GPUs of `pools`. Other reservations move until `attempts` attempts have failed.
    """
    nothing = book.arena[:0]
    gangs, spans, arena = book.gangs, book.spans, book.arena
    empty, table, ledgers, demands, parts = book.empty, book.table, book.ledgers, book.demands, book.parts
    work = book.rows
    crowded = moves.shape[0] == 0
    for i in range(at, rows.shape[0]):
        row = rows[i]
        span, gang = spans[row], 2 * jobs[row, c.J_SHAPE]
        own, began, ended = held_by(spans, arena, row), span[H_START], span[H_END]
        duration = given if given >= 0 else c.planned_run(jobs[row], promised)
        simple = gangs[gang, G_PARTS] == 1 and gangs[gang, G_COLUMN] == ANYWHERE
        if own.shape[0] == 0 or not simple or began <= now or ended != min(began + duration, FOREVER):
            return i, ASKED, NEVER, nothing, store
        if given < 0 and gangs[gang, G_ELASTIC] == 1:
            return i, ASKED, NEVER, nothing, store
        searched = span[H_OPENED] == opened
        if searched and (span[H_MOVED] == 1 or crowded):
            continue  # nothing has opened since the last search failed
        alone = moves.shape[0] == 0 or (moves.shape[0] == 1 and moves[0, M_ROW] == row)
        may_move = gangs[gang, G_MILLI] > 0 and not crowded and not alone
        failed = NEVER  # a start for which others cannot make way; NEVER: none is known
        if searched and span[H_VERSION] == version_of(book.freed, book.taken) and span[H_UNTIL] > now:
            failed = span[H_FAILED] if span[H_FAILED] > now else NEVER
        if may_move and attempts[0] > 0 and failed == NEVER and gangs[gang, G_POOLS] != pools:
            return i, ELSEWHERE, NEVER, nothing, store
        duration = min(max(duration, 1), FOREVER)
        part = parts[gangs[gang, G_FIRST]]
        start, pieces = NEVER, nothing
        if not searched:
            span[H_UNTIL] = 0
            start, pieces = find_earliest(
                book,
                store,
                part[Q_DEMAND],
                part[Q_PODS],
                duration,
                now,
                now,
                ANYWHERE,
                0,
                began,
                own,
                row,
                began,
                ended,
            )
        if start == FULL:
            return i, FULL, NEVER, nothing, store
        undecided = False
        if start > now and may_move:
            undecided = attempts[0] <= 0
            first = failed
            if not undecided and failed == NEVER:
                first = first_count(steps, gangs[gang, G_MILLI], duration, now, in_service(table, own), began, ended)
            if not undecided and first < min(start, began):
                if failed == NEVER:
                    made, found, store = make_way(book, store, moves, row, gang, duration, first, now)
                    if made not in (NEVER, NOWHERE):
                        return i, FULL if made == FULL else MADE_WAY, made, found, store
                attempts[0] -= 1
                undecided = True
        if start < NEVER:
            return i, SOONER, start, pieces, store
        if not all_hold(empty, table, store, ledgers, own, began, ended, demands, work):
            return i, ASKED, NEVER, nothing, store
        span[H_OPENED], span[H_MOVED] = opened, not (crowded or undecided)
        if recorded[row, by] == 0:
            return i, KEPT, NEVER, nothing, store
    return rows.shape[0], ASKED, NEVER, nothing, store


@compiled
def first_candidate(
    book: Book, store: Table, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, none: Table,
    stamp: int, current: int, lowest: int, moves: Table, may_move: bool, now: int,
) -> tuple[int, int, Table, Table]:  # fmt: skip
    """Return the first of `rows` from `at` on without a reservation that can or might start now: its position, the
    result, its pieces if other reservations have moved, and the store.

    Jobs without room, by the columns of `no_room.py`, are skipped until capacity is freed. Jobs whose wait is not
    recorded, or with a priority above `lowest`, are handled elsewhere. Other reservations move only with `may_move`.
    """
    nothing, gangs, demands = book.arena[:0], book.gangs, book.demands
    for i in range(at, rows.shape[0]):
        row = rows[i]
        shape, gang = jobs[row, c.J_SHAPE], 2 * jobs[row, c.J_SHAPE]
        if recorded[row, by] == 0 or jobs[row, c.J_PRIORITY] > lowest or none[shape, N_INSISTS] == 1:
            return i, ASKED, nothing, store
        duration = c.planned_run(jobs[row], promised)
        if had_no_room(none, shape, duration, stamp, current):
            continue
        part = book.parts[gangs[gang, G_FIRST]]
        d, pods = part[Q_DEMAND], part[Q_PODS]
        if gangs[gang, G_PARTS] != 1 or gangs[gang, G_COLUMN] != ANYWHERE or demands[d, c.D_ENTRIES] > 0:
            return i, ASKED, nothing, store
        start, pieces = find_earliest(
            book, store, d, pods, duration, now, now, ANYWHERE, 0, now + 1, nothing, row, 0, 0
        )  # fmt: skip
        if start == NEVER and may_move and moves.shape[0] > 0:
            start, pieces, store = make_way(book, store, moves, row, gang, duration, now, now)
            if start == now:
                return i, MADE_WAY, pieces, store
        if start not in (NEVER, NOWHERE):
            return i, FULL if start == FULL else ASKED, nothing, store
        note(none, shape, 0 if start == NOWHERE else duration, stamp, current)
    return rows.shape[0], ASKED, nothing, store


@inlined
def in_service(table: Table, pieces: Table) -> int:
    """Return the milli-GPUs of `pieces` on nodes in service."""
    milli = 0
    for i in range(pieces.shape[0]):
        if table[pieces[i, 0], c.STATUS] == 0:
            milli += pieces[i, 3] * c.bits_in(pieces[i, 2])
    return milli
