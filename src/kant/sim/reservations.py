"""What compiled instants with reservations read and write: the sorted waiting jobs (the line), and the calendar.

The calendar (`placement/calendar/`) has the devices that jobs hold, from when until when. A cycle in Python and a
compiled one (`reserve.py`) both leave it as the cluster's state requires.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Narrow, Table
from kant.cluster.transitions import RUNNING
from kant.compiled import compiled, inlined
from kant.model.placement import WIDTH
from kant.model.units import FOREVER
from kant.placement.calendar.book import H_COUNT, H_END, H_FIRST, H_START, SPAN_WIDTH, Book
from kant.placement.calendar.in_order import in_order
from kant.placement.calendar.moves import M_GANG, M_ROW, MOVE_WIDTH, held_by, keep_failures
from kant.placement.calendar.no_room import N_NOW, N_STAMP
from kant.placement.calendar.reserved import all_hold
from kant.placement.calendar.store import commit, enter, release, strike
from kant.placement.group_kernel import Domains, Scores
from kant.sim import happened as h
from kant.sim.blocked import S_FIRST
from kant.sim.ends import first_end, push_end, take_end

# Columns of the line of waiting jobs, best first.
L_ROW, L_PRIORITY, L_KEY = range(3)  # the smallest (L_PRIORITY, L_KEY, L_ROW) goes first
LINE_WIDTH = 3

OPENED, FREED, ROUND, TIGHTENED = range(4)
"""OPENED: `Forecast.opened`. FREED: how many other changes may let a job without a reservation start. ROUND:
`NoRoom.now`. TIGHTENED: 1 if reservations may no longer hold.
"""
MARKS = 4


class Reservations(NamedTuple):
    """The data of a cycle with reservations: the calendar's tables, the placement's tables, and the line.

    `expects` is a heap of the expected ends of running jobs (`ends.py`); `expected` has them by row. At most `depth`
    jobs hold a reservation; reservations may move while there are at most `most`. `keeps` is
    `ReservationBackfill.sticky`.
    """

    book: Book
    none: Table
    blocked: Table  # room for reserved capacity
    line: Table
    expects: Table
    expected: Table
    marks: Table
    depth: int
    most: int
    keeps: bool
    shapes: Table
    groups: Table
    jobs: Table
    held: Table
    view_log: Table
    typical: Table
    scores: Scores
    others: Scores
    domains: Domains | None
    places: Narrow


PLANNED = -1
"""Run times are planned as they are given (`planned_run`)."""


# --- the line of waiting jobs --------------------------------------------------------------------------------------


@inlined
def join(line: Table, count: int, row: int, priority: int, key: int) -> None:
    """Insert the job that arrived last into the line, whose first `count` rows are in use."""
    at = count
    while at > 0 and (
        line[at - 1, L_PRIORITY] > priority or (line[at - 1, L_PRIORITY] == priority and line[at - 1, L_KEY] > key)
    ):
        c.copy_row(line, at - 1, line, at)
        at -= 1
    line[at, L_ROW], line[at, L_PRIORITY], line[at, L_KEY] = row, priority, key


@compiled
def close_up(line: Table, count: int, jobs: Table) -> None:
    """Remove the running jobs from the first `count` in line."""
    kept = 0
    for i in range(count):
        row = line[i, L_ROW]
        if jobs[row, c.J_STATUS] != RUNNING:
            c.copy_row(line, i, line, kept)
            kept += 1


# --- the calendar follows the run ----------------------------------------------------------------------------------


@compiled
def leaves(r: Reservations, store: Table, row: int, now: int) -> None:
    """Remove a job that has ended from the calendar."""
    book, spans, arena = r.book, r.book.spans, r.book.arena
    early = bool(spans[row, H_END] > now)
    r.marks[OPENED] += early
    r.marks[FREED] += 1
    r.expected[row] = -1
    strike(store, book.ledgers, book.freed, book.spans, held_by(spans, arena, row), row, early)


@compiled
def follow_ends(r: Reservations, store: Table, now: int) -> Table:
    """Postpone the ends of jobs that have outlived their estimates. Returns `store`, the calendar's table."""
    book, spans, arena = r.book, r.book.spans, r.book.arena
    while first_end(r.expects, r.expected) <= now:
        row = take_end(r.expects, r.expected)
        start, span = book.spans[row, H_START], c.planned_run(r.jobs[row], PLANNED)
        end = c.expected_end(r.jobs[row, c.J_SINCE], span, now)
        pieces = held_by(spans, arena, row)
        release(store, book.ledgers, book.freed, pieces, row, bool(np.bool_(0)))
        store = commit(store, book.used, book.ledgers, book.taken, pieces, row, start, end)
        book.spans[row, H_END] = end
        if end < FOREVER:
            push_end(r.expects, r.expected, row, end)
        r.marks[OPENED] += 1
        r.marks[TIGHTENED] = 1
    return store


@compiled
def has_room(book: Book, more: int) -> bool:
    """Return whether the calendar has room for `more` pieces. Drops stale pieces if necessary."""
    spans, arena, used = book.spans, book.arena, 0
    if book.pieces[0] + more <= arena.shape[0]:
        return True
    rows = np.flatnonzero(spans[:, H_COUNT] > 0)
    for i in np.argsort(spans[rows, H_FIRST]):
        first, count = spans[rows[i], H_FIRST], spans[rows[i], H_COUNT]
        spans[rows[i], H_FIRST] = used
        for k in range(count):
            c.copy_row(arena, first + k, arena, used + k)
        used += count
    book.pieces[0] = used
    return bool(used + more <= arena.shape[0])


@compiled
def spans_of(r: Reservations, count: int) -> Table:
    """Return what the first `count` jobs in line hold, as rows of the calendar's spans."""
    return r.book.spans[r.line[:count, L_ROW]]


@compiled
def take_back(r: Reservations, store: Table, before: Table, marks: Table) -> Table:
    """Undo a cycle: the jobs in line hold again what they held `before`. Returns the store."""
    book, spans, arena = r.book, r.book.spans, r.book.arena
    for i in range(before.shape[0]):
        row, old = r.line[i, L_ROW], before[i]
        span = book.spans[row]
        changed = False
        for column in (H_FIRST, H_COUNT, H_START, H_END):
            changed = changed or span[column] != old[column]
        if changed and span[H_COUNT] > 0:
            strike(store, book.ledgers, book.freed, spans, held_by(spans, arena, row), row, bool(np.bool_(1)))
        for column in range(SPAN_WIDTH):
            span[column] = old[column]
        if changed and old[H_COUNT] > 0:
            store = commit(
                store, book.used, book.ledgers, book.taken, held_by(spans, arena, row), row, old[H_START], old[H_END]
            )
    r.none[:, N_STAMP], r.none[:, N_NOW] = -1, 0
    r.marks[:] = marks
    return store


# --- what a cycle does ---------------------------------------------------------------------------------------------

NOTHING, HOLDS, STARTS, HELD_ONE = range(4)
"""What a job in line has: nothing yet; a reservation; it starts; it starts, and had a reservation."""


@compiled
def movable(r: Reservations, rows: Table, standing: Table) -> Table:
    """Return the reservations that may move, sorted by start, with the columns M_*."""
    found, count = np.empty(rows.shape[0], dtype=np.int64), 0
    for i in range(rows.shape[0]):
        if standing[i] == HOLDS and r.book.spans[rows[i], H_COUNT] > 0:
            found[count] = rows[i]
            count += 1
    found = found[in_order(found[:count])]
    moves = np.zeros((count, MOVE_WIDTH), dtype=np.int64)
    order = in_order(r.book.spans[found, H_START])
    for k in range(count):
        row = found[order[k]]
        moves[k, M_ROW], moves[k, M_GANG] = row, 2 * r.jobs[row, c.J_SHAPE]
    return moves


@compiled
def still_free(r: Reservations, store: Table, pieces: Table, row: int, start: int, end: int, now: int) -> Table:
    """Enter a former reservation again if its devices are still free; otherwise the job has none. Returns `store`."""
    book = r.book
    if start >= now:
        store = enter(
            store, book.used, book.ledgers, book.taken, book.spans, book.arena, book.pieces, pieces, row, start, end
        )
        if not all_hold(book.empty, book.table, store, book.ledgers, pieces, start, end, book.demands, book.rows):
            strike(store, book.ledgers, book.freed, book.spans, pieces, row, bool(np.bool_(1)))
    return store


@inlined
def group_of(r: Reservations, row: int) -> Table:
    """Return the only group of a job, a row of `group_kernel.py`."""
    own: Table = r.groups[r.shapes[r.jobs[row, c.J_SHAPE], S_FIRST]]
    return own


@compiled
def begins(
    r: Reservations, store: Table, rows: Table, version: int, old: Table, began: int, row: int, top: int, end: int,
    now: int, happened: Table, said: int, instant: int,
) -> tuple[int, Table]:  # fmt: skip
    """Start a job on the pieces [top, end) of `held`. It had reserved the pieces `old` from `began` (µs) on.

    `rows` are all waiting jobs; `version` is for `keep_failures`. Returns the number of events and `store`.
    """
    book, pieces = r.book, r.held[top:end]
    same = began <= now and old.shape[0] == end - top
    for i in range(old.shape[0] if same else 0):
        for column in range(WIDTH):
            same = same and old[i, column] == pieces[i, column]
    r.marks[OPENED] += old.shape[0] > 0 and not same
    until = min(now + c.planned_run(r.jobs[row], PLANNED), FOREVER)
    store = enter(
        store, book.used, book.ledgers, book.taken, book.spans, book.arena, book.pieces, pieces, row, now, until
    )
    if same or old.shape[0] == 0:
        keep_failures(book, rows, version, pieces, -1 if same else until)
    return h.note(happened, said, now, h.STARTED, row, instant, top, end - top), store


@compiled
def promises(
    r: Reservations, store: Table, pieces: Table, row: int, top: int, start: int, now: int, happened: Table, said: int,
    instant: int,
) -> tuple[int, Table]:  # fmt: skip
    """Reserve `pieces` for a job from `start` (µs) on; copy them to `held` at `top`. Returns event count and store."""
    book, event = r.book, happened[said]
    end = min(start + c.planned_run(r.jobs[row], PLANNED), FOREVER)
    store = enter(
        store, book.used, book.ledgers, book.taken, book.spans, book.arena, book.pieces, pieces, row, start, end
    )
    for i in range(pieces.shape[0]):
        c.copy_row(pieces, i, r.held, top + i)
    event[h.H_BEGIN], event[h.H_END] = start, end
    return h.note(happened, said, now, h.RESERVED, row, instant, top, pieces.shape[0]), store
