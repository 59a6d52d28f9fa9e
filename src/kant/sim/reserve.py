"""Reservations in compiled instants: one cycle of backfilling with reservations, without quotas or preemption.

The order of service is that of `queueing/reservation_backfill.py`, and both call the same functions of the calendar.
Python decides a cycle in which reservations are suspended or move, or in which a job cannot have a reservation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.snapshot import all_free, move
from kant.compiled import compiled
from kant.model.placement import GROUP, WIDTH
from kant.model.units import FOREVER
from kant.placement.calendar.book import (
    ANYWHERE,
    FULL,
    G_FIRST,
    G_MILLI,
    G_POOLS,
    H_COUNT,
    H_END,
    H_START,
    Q_DEMAND,
    Q_NUMBER,
    Q_PODS,
)
from kant.placement.calendar.commitments import NEVER
from kant.placement.calendar.counted import count_steps, first_count
from kant.placement.calendar.earliest_start import find_earliest
from kant.placement.calendar.moves import (
    ASKED,
    ELSEWHERE,
    KEPT,
    MADE_WAY,
    MOVE_WIDTH,
    NOWHERE,
    first_candidate,
    first_sooner,
    held_by,
    make_way,
)
from kant.placement.calendar.no_room import had_no_room
from kant.placement.calendar.no_room import note as note_none
from kant.placement.calendar.reserved import all_hold, promised
from kant.placement.calendar.store import strike, version_of
from kant.placement.group_kernel import G_NUMBER, G_PODS
from kant.placement.kernels import Kernel, named
from kant.queueing.reservation_moves import FAILURES
from kant.queueing.waiting import P_RECORDED
from kant.sim import happened as h
from kant.sim.reservations import (
    FREED,
    HELD_ONE,
    HOLDS,
    L_ROW,
    NOTHING,
    OPENED,
    PLANNED,
    ROUND,
    STARTS,
    TIGHTENED,
    Reservations,
    begins,
    group_of,
    movable,
    promises,
    still_free,
)

WAITS, NO_ROOM, NO_SLOTS = 1, 2, 3
"""Why an instant is left to Python, or tried again: Python decides it; tables are full; there are too few slots."""

Cycle = Callable[..., tuple[int, int, int, int, Table]]


@cache
def reserving_kernel(place: Kernel) -> Cycle:
    """Return the compiled cycle for a profile that places groups by `place`."""

    def put(r: Reservations, row: int, top: int) -> int:
        """Place a job: write its pieces to `held` from `top` on. Returns the row after them; if the job does not fit,
        -1 minus the number of pods that fit."""
        group = group_of(r, row)
        end = place(
            r.book.table, r.view_log, r.book.demands, group, r.typical, r.scores, r.others, r.domains, group[G_PODS],
            r.held, top,
        )  # fmt: skip
        for piece in range(top, end):
            r.held[piece, GROUP] = group[G_NUMBER]
        return int(end)

    put = compiled(named(put, place))

    def put_beside(
        r: Reservations, store: Table, rows: Table, standing: Table, due: Table, row: int, top: int, now: int
    ) -> int:
        """Place a job as `put` does, clear of all that others have reserved (`CyclePlan.reserved_space`)."""
        book, view, log, demands = r.book, r.book.table, r.view_log, r.book.demands
        spans, arena = book.spans, book.arena
        until = min(now + c.planned_run(r.jobs[row], PLANNED), FOREVER)
        taken, blocked = np.zeros(rows.shape[0], dtype=np.bool_), r.blocked
        takes, gives = bool(np.bool_(1)), bool(np.bool_(0))
        for i in range(rows.shape[0]):
            taken[i] = due[i] == 1 and standing[i] == HOLDS and book.spans[rows[i], H_COUNT] > 0
            taken[i] = taken[i] and all_free(view, held_by(spans, arena, rows[i]), demands)
        used = promised(book.empty, view, store, book.ledgers, now, until, demands, book.rows, blocked)
        while used < 0:
            blocked = np.zeros((2 * blocked.shape[0], WIDTH), dtype=np.int64)
            used = promised(book.empty, view, store, book.ledgers, now, until, demands, book.rows, blocked)
        for i in range(rows.shape[0]):
            if taken[i]:
                move(view, log, held_by(spans, arena, rows[i]), demands, takes)
        move(view, log, blocked[:used], demands, takes)
        end = put(r, row, top)
        for i in range(rows.shape[0]):
            if taken[i]:
                move(view, log, held_by(spans, arena, rows[i]), demands, gives)
        move(view, log, blocked[:used], demands, gives)
        return int(end)

    put_beside = compiled(named(put_beside, place))

    def tell(
        r: Reservations, rows: Table, standing: Table, row: int, top: int, now: int, happened: Table, said: int,
        instant: int,
    ) -> int:  # fmt: skip
        """Record why a job waits, once for each wait. Returns the number of events."""
        if r.places[row, P_RECORDED] == 1:
            return said
        r.places[row, P_RECORDED] = 1
        end = put(r, row, top)
        if end < 0:
            return int(h.note(happened, said, now, h.HELD, row, instant, -1 - end, 0))
        move(r.book.table, r.view_log, r.held[top:end], r.book.demands, bool(np.bool_(0)))
        first, whose = FOREVER, -1
        for i in range(rows.shape[0]):
            start, other = r.book.spans[rows[i], H_START], rows[i]
            holds = standing[i] == HOLDS or standing[i] == HELD_ONE
            sooner = start < first or (start == first and other < whose)
            if other != row and holds and r.book.spans[other, H_COUNT] > 0 and sooner:
                first, whose = start, other
        if whose < 0:
            first, whose = now, row
        return int(h.note(happened, said, now, h.BEHIND, row, instant, first, whose))

    tell = compiled(named(tell, place))

    def cycle(
        r: Reservations, store: Table, count: int, top: int, now: int, happened: Table, said: int, instant: int
    ) -> tuple[int, int, int, int, Table]:
        """Decide about the first `count` jobs in line. Returns why Python decides (0: it need not), the number of
        events, the number of rows of `held` in use, when to look again (µs; -1: never), and the store.
        """
        book, jobs, spans, arena, marks = r.book, r.jobs, r.book.spans, r.book.arena, r.marks
        rows = r.line[:count, L_ROW].copy()
        standing, due = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        nothing, yes = book.arena[:0], bool(np.bool_(1))
        # Not literals: Numba compiles a callee anew for each literal.
        zero, by, anywhere = int(np.int64(0)), int(np.int64(P_RECORDED)), int(np.int64(ANYWHERE))
        planned, never, nobody = int(np.int64(PLANNED)), int(np.int64(NEVER)), int(np.int64(-1))
        attempts, reserved, lowest = np.full(1, FAILURES), 0, FOREVER
        marks[ROUND] += 1
        for i in range(count):
            span = spans[rows[i]]
            if span[H_COUNT] > 0:
                own = held_by(spans, arena, rows[i])
                if span[H_START] < now or (not r.keeps and i > 0):
                    return WAITS, said, top, -1, store
                if marks[TIGHTENED] == 1 and not all_hold(
                    book.empty, book.table, store, book.ledgers, own, span[H_START], span[H_END], book.demands,
                    book.rows,
                ):  # fmt: skip
                    return WAITS, said, top, -1, store
                standing[i], due[i] = HOLDS, span[H_START] == now
                reserved += 1
                if r.keeps:
                    lowest = min(lowest, jobs[rows[i], c.J_PRIORITY])
        marks[TIGHTENED] = 0
        served, passed, passes, chosen, tries_passed = 0, np.empty(count, dtype=np.int64), 0, 0, False
        moves, knows_moves = np.zeros((0, MOVE_WIDTH), dtype=np.int64), False
        steps, pools, candidates = nothing, 0, rows[:0]
        while True:
            at = -1  # the job that is served now
            if served < count:
                row = rows[served]
                if standing[served] == HOLDS:
                    end, given = count, -1
                    if not r.keeps:
                        end, given = served + 1, c.planned_run(jobs[row], PLANNED)
                    if not knows_moves:
                        moves = movable(r, rows, standing)
                        moves, knows_moves = moves if reserved <= r.most else moves[:0], True
                    stands, what, start, pieces, store = first_sooner(
                        book, store, rows[:end], served, r.places, by, jobs, planned, given, steps, pools, moves,
                        attempts, now, marks[OPENED],
                    )  # fmt: skip
                    served = stands
                    if what == ELSEWHERE:
                        pools = book.gangs[2 * jobs[rows[served], c.J_SHAPE], G_POOLS]
                        steps = count_steps(book.table, store, book.ledgers, pools, now)
                        continue
                    if what in (FULL, MADE_WAY):
                        return NO_SLOTS if what == FULL else WAITS, said, top, -1, store
                    if served == end:
                        continue
                    row = rows[served]
                    if standing[served] != HOLDS:
                        continue
                    if what == KEPT:
                        said = tell(r, rows, standing, row, top, now, happened, said, instant)
                        served += 1
                        continue
                    if what != ASKED:  # an earlier start
                        old, began = held_by(spans, arena, row).copy(), spans[row, H_START]
                        strike(store, book.ledgers, book.freed, spans, old, row, yes)
                        knows_moves, pools = False, 0
                        if start <= now:
                            last = put_beside(r, store, rows, standing, due, row, top, now)
                            if last < 0:
                                return WAITS, said, top, -1, store
                            said, store = begins(
                                r, store, rows, nobody, old, began, row, top, last, now, happened, said, instant
                            )
                            standing[served] = HELD_ONE
                            reserved -= 1
                            top = last
                        else:
                            said, store = promises(r, store, pieces, row, top, start, now, happened, said, instant)
                            marks[OPENED] += 1
                            top += pieces.shape[0]
                            said = tell(r, rows, standing, row, top, now, happened, said, instant)
                        served += 1
                        continue
                else:
                    for i in range(served + 1, count if lowest < jobs[row, c.J_PRIORITY] else 0):
                        if standing[i] == HOLDS and jobs[rows[i], c.J_PRIORITY] < jobs[row, c.J_PRIORITY]:
                            return WAITS, said, top, -1, store  # Python suspends the reservation
                if standing[served] != HOLDS and reserved >= r.depth:
                    for i in range(served, served + 1 if r.keeps else count):
                        passed[passes] = i
                        passes += 1
                    served = served + 1 if r.keeps else count
                    continue
                at = served
                served += 1
            elif chosen < passes and not tries_passed and reserved < r.depth:
                at = passed[chosen]
                chosen += 1
            else:
                if not tries_passed:
                    tries_passed, candidates = True, rows[passed[:passes]]
                if chosen == passes:
                    break
                if r.places[candidates[chosen], P_RECORDED] == 1 and reserved >= r.depth:
                    if not knows_moves:
                        moves = movable(r, rows, standing)
                        moves, knows_moves = moves if reserved <= r.most else moves[:0], True
                    chosen, what, pieces, store = first_candidate(
                        book, store, candidates, chosen, r.places, by, jobs, planned, r.none,
                        marks[FREED] + marks[OPENED], marks[ROUND], lowest, moves, reserved <= r.most, now,
                    )  # fmt: skip
                    if what in (FULL, MADE_WAY):
                        return NO_SLOTS if what == FULL else WAITS, said, top, -1, store
                    if chosen == passes:
                        break
                at = passed[chosen]
                chosen += 1

            row, shape = rows[at], jobs[rows[at], c.J_SHAPE]
            gang, duration, had = book.gangs[2 * shape], c.planned_run(jobs[row], PLANNED), standing[at] == HOLDS
            old, began, ended, version = nothing, 0, 0, version_of(book.freed, book.taken)
            if had:
                old, began, ended = held_by(spans, arena, row).copy(), spans[row, H_START], spans[row, H_END]
                strike(store, book.ledgers, book.freed, spans, old, row, yes)
                reserved -= 1
                knows_moves, pools, standing[at] = False, 0, NOTHING
            may_hold, start, pieces, last = reserved < r.depth, never, nothing, -1
            stamp = marks[FREED] + marks[OPENED]
            known = not may_hold and had_no_room(r.none, shape, duration, stamp, marks[ROUND])
            if may_hold:
                part = book.parts[gang[G_FIRST]]
                start, pieces = find_earliest(
                    book, store, part[Q_DEMAND], part[Q_PODS], duration, now, now, anywhere, zero,
                    never, nothing, nobody, zero, zero,
                )  # fmt: skip
                if start == FULL:
                    return NO_SLOTS, said, top, -1, store
                pieces[:, GROUP] = part[Q_NUMBER]
                if start == now:
                    last = put_beside(r, store, rows, standing, due, row, top, now)
                    if last < 0:
                        return WAITS, said, top, -1, store
            elif not known:
                last = put_beside(r, store, rows, standing, due, row, top, now)
            others_may, ever = reserved + had <= r.most, True
            if may_hold:
                others_may = others_may and gang[G_MILLI] > 0 and reserved > 0 and attempts[0] > 0
            if last < 0 and others_may and not known:
                first = now
                if may_hold:
                    if gang[G_POOLS] != pools:
                        pools = gang[G_POOLS]
                        steps = count_steps(book.table, store, book.ledgers, pools, now)
                    first = first_count(steps, gang[G_MILLI], duration, now, zero, never, never)
                if first < start:
                    if not knows_moves:
                        moves, knows_moves = movable(r, rows, standing), True
                    made, _, store = make_way(book, store, moves, row, 2 * shape, duration, first, now)
                    if made not in (NEVER, NOWHERE):
                        return NO_SLOTS if made == FULL else WAITS, said, top, -1, store
                    attempts[0] -= 1 if may_hold else 0
                    ever = made != NOWHERE
            if last >= 0:
                said, store = begins(r, store, rows, version, old, began, row, top, last, now, happened, said, instant)
                standing[at] = HELD_ONE if had else STARTS
                knows_moves, pools, top = False, 0, last
                continue
            if not may_hold and not known:
                note_none(r.none, shape, duration if ever else 0, stamp, marks[ROUND])
            if may_hold and start == NEVER:
                return WAITS, said, top, -1, store
            if had and may_hold and start >= began:
                store = still_free(r, store, old, row, began, ended, now)
            if had and not may_hold:
                return WAITS, said, top, -1, store  # Python releases the reservation
            if may_hold and spans[row, H_COUNT] == 0:
                said, store = promises(r, store, pieces, row, top, start, now, happened, said, instant)
                marks[OPENED] += had
                top += pieces.shape[0]
            if may_hold:
                standing[at], knows_moves, pools = HOLDS, False, 0
                reserved += 1
            said = tell(r, rows, standing, row, top, now, happened, said, instant)
        review = FOREVER
        for i in range(count):
            if standing[i] == HOLDS and spans[rows[i], H_START] > now:
                review = min(review, spans[rows[i], H_START])
        return 0, said, top, review if review < FOREVER else -1, store

    return compiled(named(cycle, place))
