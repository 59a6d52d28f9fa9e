"""Backfilling with reservations: a waiting job has a reserved start, and no job that starts may delay it.

Sources: D. A. Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY: only the head has a reservation); A. W.
Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001 (conservative: every job has one). Here reservations are real devices
on real nodes, so a job that uses part of a node leaves the rest to others. On nodes of one GPU each the start times are
those of the sources (`tests/core/textbook.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kant.cluster.columns import J_PRIORITY, J_SINCE, Table
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit, OutOfBudget, Reason, Reserved
from kant.model.placement import Allocation, Reservation
from kant.model.units import FOREVER, HOUR
from kant.queueing.cycle_plan import NOTHING, CyclePlan
from kant.queueing.order import Order
from kant.queueing.ports import NotNow
from kant.queueing.preemption.backfilled import await_starts, preempt_backfilled
from kant.queueing.reservation_moves import ReservationMoves
from kant.queueing.waiting import P_RECORDED

NO_ROWS: Table = np.zeros(0, dtype=np.int64)


class ReservationBackfill:
    """One cycle of backfilling with reservations: which jobs start, get a reservation, or wait without one.

    A discipline creates one in each cycle and calls `run`. Jobs are served in the profile's order. The first `depth` of
    them that do not fit hold a reservation (0: all of them). Then the others, the candidates, are tried in
    `backfill_order` (None: the profile's order): a candidate starts where it delays no reservation.

    With `sticky` a job keeps its reservation while it waits, and may only move to an earlier start; jobs ahead of it in
    the order plan around it, and only a job of higher priority suspends it. Otherwise the order decides in every cycle:
    all reservations are made again from the first job on.

    A reservation is a start and an end, with the devices that are freed last before this start.
    To let a job start, or get an earlier reservation, reservations that begin later may take other devices at the same
    start (`reservation_moves.py`). This is tried while there are at most `moves` reservations.

    If no job's end is known, nothing can be reserved: a head that has waited for `timeout` preempts backfilled jobs.

    Times are microseconds (`timeout`, `cycle.now`, the J_ columns of the job table that hold a time: J_SUBMIT, J_SINCE,
    J_STARTED, J_ESTIMATE, J_REMAINING, J_ATTAINED, J_DUE; -1: unknown), GPUs are thousandths (J_MILLI), and
    `forecast.estimates.duration` is the planned run time of a job in microseconds (FOREVER: unknown).

    Raises AssertionError for a discipline without `forecasts = True`, because its cycles have no forecast.
    """

    def __init__(
        self,
        cycle: CyclePlan,
        *,
        depth: int = 0,
        timeout: int = HOUR,
        sticky: bool = False,
        moves: int = 256,
        backfill_order: Order | None = None,
    ) -> None:
        assert cycle.forecast is not None, "a discipline that reserves says `forecasts = True`"
        self.cycle = cycle
        self.state = cycle.state
        self.forecast = cycle.forecast
        self.calendar = cycle.forecast.calendar
        self.most = depth or FOREVER
        self.timeout = timeout
        self.sticky = sticky
        self.moves = ReservationMoves(cycle, moves)
        self.backfill_order = backfill_order
        self.suspended: dict[int, Reservation] = {}  # reservations that are off the calendar for now
        self.no_room = self.calendar.no_room
        self.no_room.now += 1
        self.asked: set[tuple[int, tuple[str, ...]]] = set()  # `Shape.reach` of heads that cannot have a reservation
        self.unserved: list[tuple[int, Shape]] = []  # late heads that may preempt more jobs later
        held = list(self.state.reserved) if sticky else []
        priorities = self.state.jobs[held, J_PRIORITY].tolist()
        self.behind = dict(zip(held, priorities, strict=True))  # priorities of sticky reservations not yet served
        self.lowest = min(priorities, default=FOREVER)
        admission = cycle.admission
        self.plain = cycle.evictor is None and admission.quota_usage.tree is None and not admission.burst_replicas

    def run(self) -> None:
        """Start every waiting job, reserve devices for it, or let it wait without a reservation."""
        cycle, state = self.cycle, self.state
        for row in self._broken():
            self._suspend(row)
            self.behind.pop(row, None)
            self.forecast.opened += 1
        ranked, passed, turns = list[int](), list[int](), self._turns()
        rows = next(turns, NO_ROWS)
        if not self.sticky:
            for row in state.reserved.keys() - rows[:1].tolist():  # no job is before the first one
                self._suspend(row)
        while len(rows):
            ranked += rows.tolist()
            passed += self._serve_in_turn(rows)
            rows = next(turns, NO_ROWS)
        self._resume()
        while passed and not self._is_full():  # a job with a reservation has started
            self._serve(passed.pop(0))
        for row in sorted(self.suspended):
            cycle.release(row)
        self.suspended.clear()
        self._serve_candidates(self._candidates(ranked, passed))
        while released := cycle.pending.take_released():  # replicas whose base jobs were candidates
            for row in self._candidates(released, released):
                self._serve(row)
        self.moves.tell()
        if self.unserved:
            await_starts(cycle, self.unserved)
        later = [start for start, _ in self._reserved_starts() if start > cycle.now]  # starts at `now` need no cycle
        cycle.wake_at(min(later, default=-1))
        held = self.calendar.held
        for row in [row for row in state.reserved if row not in held]:
            if row not in cycle.unreserved:
                cycle.release(row)

    def _turns(self) -> Iterator[Table]:
        """Yield the jobs in order: all at once if no decision can change the order meanwhile."""
        turns = self.cycle.ranked()
        if self.plain:
            yield np.fromiter(turns, dtype=np.int64)
        else:
            for row in turns:
                yield np.array([row], dtype=np.int64)

    def _serve_in_turn(self, rows: Table) -> list[int]:
        """Serve the jobs that hold a reservation or may get one. Returns the others, the candidates."""
        state, passed, at = self.state, list[int](), 0
        while True:
            at = self._reconsider(rows, at)
            if at == len(rows):
                return passed
            row = rows.item(at)
            if not self.sticky and row not in self.calendar and self._is_full():
                return [*passed, *rows[at:].tolist()]
            if row not in state.reserved:
                self._suspend_lower(state.jobs.item(row, J_PRIORITY))
                if self._is_full():
                    passed.append(row)
                    at += 1
                    continue
            self._serve(row)
            at += 1

    def _candidates(self, ranked: list[int], passed: list[int]) -> list[int]:
        """Return the jobs that get no reservation, in backfill order."""
        if self.backfill_order is None or len(passed) < 2:
            return passed
        rows, some = np.sort(np.array(ranked, dtype=np.int64)), set(passed)
        order = rows[self.cycle.ranking(rows, self.backfill_order)].tolist()
        return [row for row in order if row in some]

    def _is_full(self) -> bool:
        return self._reservations() >= self.most

    def _reservations(self) -> int:
        """Return how many jobs hold a reservation after the plan so far, without the suspended ones."""
        cycle = self.cycle
        return len(self.state.reserved) + cycle.newly_reserved - len(cycle.unreserved) - len(self.suspended)

    # --- reservations that are suspended -----------------------------------------------------------------------

    def _broken(self) -> list[int]:
        """Return the reservations that can no longer be kept: a job outlived its estimate, or a node left."""
        state, tightened, now = self.state, self.forecast.tightened, self.cycle.now
        self.forecast.tightened = False
        reserved = [row for row in state.reserved if row not in self.cycle.unreserved]  # of jobs not rejected
        late = [row for row in reserved if state.reserved[row].start < now]
        if not tightened:
            return sorted(late)
        return sorted({*late, *(row for row in reserved if row not in late and not self.calendar.holds(row))})

    def _suspend_lower(self, priority: int) -> None:
        """Suspend the reservations of lower priority that are later in the order; resume the others."""
        self._resume(priority)
        if self.lowest < priority:
            for row in [row for row, own in self.behind.items() if own < priority and row in self.calendar]:
                self._suspend(row)
                self.no_room.now += 1

    def _resume(self, least: int = -FOREVER) -> None:
        """Resume suspended reservations of at least this priority; a job whose devices are taken is served later."""
        for row, old in list(self.suspended.items()):
            if self.behind.get(row, -FOREVER - 1) < least:
                continue
            if not self._is_full() and self._still_free(row, old):
                del self.suspended[row]
                self.forecast.reserves(row, old.allocation, old.start, old.end)
            else:
                del self.behind[row]
                self.forecast.opened += 1  # others may use the rest of its former devices

    def _suspend(self, row: int) -> None:
        """Take a job's reservation off the calendar; the job may get it back when the job is served."""
        if row in self.state.reserved and row in self.calendar:
            self.suspended[row] = self.state.reserved[row]
            self.forecast.withdraws(row)

    # --- one job -----------------------------------------------------------------------------------------------

    def _reconsider(self, rows: Table, at: int) -> int:
        """Keep or improve reservations without suspending them; return the index of the first job from `at` on that
        `_serve` must serve.

        The decisions are those that `_serve` would make. Most reservations are kept, at one query for all of them.
        """
        cycle, state = self.cycle, self.state
        while at < len(rows):
            row, end, given = rows.item(at), len(rows), -1
            if row in state.reserved:
                self.behind.pop(row, None)
                self._resume()
            if row not in state.reserved or row not in self.calendar or not self._may_keep(row):
                return at
            if row in state.elastic or not self.plain or self.suspended or not self.sticky:
                end, given = at + 1, self.forecast.estimates.duration(state, row)
            stands, kept, found = self.moves.first_sooner(rows[:end], at, given)
            for row in rows[at:stands].tolist():
                self.behind.pop(row, None)
            at = stands
            if at == end:
                continue
            row = rows.item(at)
            self.behind.pop(row, None)
            if found is None and not kept:
                if given < 0 and row in state.elastic:
                    continue
                return at
            shape = state.shape_of(row)
            if found is not None:
                until = self.forecast.estimates.end_if_started(state, row, found[0])
                if found[0] <= cycle.now:
                    self._suspend(row)
                    placed = self._placed(row, shape, found[1], until)
                    if placed is None:
                        return at
                    self._start(row, placed)
                    at += 1
                    continue
                cycle.reserve(row, found[1], found[0], until)
            self._tried(row, shape, None)
            at += 1
        return at

    def _may_keep(self, row: int) -> bool:
        """Return whether a job with a reservation waits only for the start of that reservation."""
        admission = self.cycle.admission
        if self.plain:
            return True
        if self.cycle.evictor is not None or admission.closed(row) is not None:
            return False
        options = admission.options(row, self.state.shape_of(row))
        return len(options) == 1 and admission.shortage(row, options[0]) is None

    def _serve(self, row: int) -> None:
        cycle = self.cycle
        self._suspend(row)
        shape = self.state.shape_of(row)
        reason: Reason | None = cycle.admission.closed(row)
        if isinstance(reason, OutOfBudget):
            cycle.wake_at(reason.until)
        best: tuple[int, Allocation] | None = None
        may_hold = not self._is_full()
        duration = self.forecast.estimates.duration(self.state, row)
        until = self.forecast.estimates.end_if_started(self.state, row, cycle.now)
        options = cycle.admission.options(row, shape) if reason is None else []
        for option in options:
            short = cycle.admission.shortage(row, option)
            if short is not None:
                reason = reason or short
                continue
            if not may_hold or not option.reservable:
                allocation = self._now(row, option, duration, until)
                found = None if allocation is None else (cycle.now, allocation)
            else:
                found = self._earliest(row, option, duration, until, best)
            if found is not None and found[0] == cycle.now:
                self._start(row, found[1])
                return
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if options and cycle.evictor is not None:
            for option in options:
                freed = self._make_room(row, option, until)
                if not isinstance(freed, NotNow):
                    self.forecast.tightened = True  # reservations of lower priority may no longer hold
                    self._start(row, freed)
                    return
        if best is None and reason is None and (may_hold or not shape.reservable):
            made = self._serve_late(row, shape)
            if made is not None:
                self._start(row, made)
                return
        self._wait(row, shape, reason, best, duration)

    def _serve_late(self, row: int, shape: Shape) -> Allocation | None:
        """Without estimates: let the first head of each set of pools preempt backfilled jobs after a `timeout`."""
        if shape.reach in self.asked:
            return None
        self.asked.add(shape.reach)
        until = int(self.state.jobs[row, J_SINCE]) + self.timeout
        self.cycle.wake_at(until)
        if until > self.cycle.now:
            return None
        if not self.state.books:
            made = preempt_backfilled(self.cycle, row, shape)
        else:
            with self.cycle.beside_bookings(row):
                made = preempt_backfilled(self.cycle, row, shape)
        if isinstance(made, NotNow):
            if self.cycle.order.outgrown or not made.definitive:
                self.unserved.append((row, shape))
            return None
        self.forecast.tightened = True  # the preempting head ignores reservations
        return made

    def _start(self, row: int, allocation: Allocation) -> None:
        self.suspended.pop(row, None)
        if self.state.books and self.cycle.booked.own(row):  # the job may take CPU that is reserved
            self.forecast.tightened = True
        self.cycle.start(row, allocation)

    def _wait(
        self, row: int, shape: Shape, reason: Reason | None, best: tuple[int, Allocation] | None, duration: int
    ) -> None:
        """Keep the old reservation, make a new one, or release it; and record why the job waits."""
        cycle, may_hold = self.cycle, not self._is_full()
        old = self.suspended.pop(row, None)
        better = best is not None and old is not None and best[0] < old.start
        if may_hold and old is not None and reason is None and not better and self._still_free(row, old):
            self.forecast.reserves(row, old.allocation, old.start, old.end)
        elif may_hold and best is not None:
            cycle.reserve(row, best[1], best[0], min(best[0] + duration, FOREVER))
        elif old is not None:
            cycle.release(row)
        self._tried(row, shape, reason)

    def _tried(self, row: int, shape: Shape, reason: Reason | None) -> None:
        """Record why the job waits, unless it is recorded already."""
        if not self.cycle.pending.places.item(row, P_RECORDED):
            self.cycle.hold(row, reason or self._what_is_missing(row, shape))

    def _still_free(self, row: int, reservation: Reservation) -> bool:
        if reservation.start < self.cycle.now:
            return False
        self.calendar.add(row, reservation.allocation, reservation.start, reservation.end)
        holds = self.calendar.holds(row)
        self.calendar.remove(row)
        return holds

    def _earliest(
        self, row: int, shape: Shape, duration: int, until: int, best: tuple[int, Allocation] | None
    ) -> tuple[int, Allocation] | None:
        """Return the earliest start (µs) and its devices, or None. `best`: the earliest found for other options so far.

        If the start is now, the profile's placement chooses the devices.
        """
        now = self.cycle.now
        found = self.calendar.earliest(shape, duration, now)
        if found is None or found[0] > now:
            before = min(FOREVER if found is None else found[0], FOREVER if best is None else best[0])
            found = self.moves.sooner(row, shape, duration, before) or found
        if found is None or found[0] > now:
            return found
        placed = self._placed(row, shape, found[1], until)
        return None if placed is None else (found[0], placed)

    def _placed(self, row: int, shape: Shape, proven: Allocation, until: int) -> Allocation | None:
        """Return the devices that the profile's placement chooses for a gang that fits now.

        None if these devices are booked for others from a time on that the gang's limit reaches, although its planned
        end does not; or if the gang needs CPU or memory that belongs to booked GPUs.
        """
        result = self.cycle.place_beside(row, shape, until)
        if isinstance(result, NoFit):  # several groups: the two searches may differ, and `proven` fits too
            with self.cycle.beside_bookings(row):
                if not self.cycle.placer.trial.is_free(proven):
                    return None
            self.cycle.placer.trial.restore(proven, shape.affinity.group if shape.affinity is not None else "")
            return proven
        return result

    def _now(self, row: int, shape: Shape, duration: int, until: int) -> Allocation | None:
        """Place a job that gets no reservation itself, clear of all reservations; None if it does not fit."""
        if self._known_to_fail(shape, duration):
            return None
        placed: Allocation | None = None
        if self.cycle.placer.may_fit(shape):  # without reservations
            result = self.cycle.place_beside(row, shape, until)
            placed = self._beside_moved(row, shape, duration, until) if isinstance(result, NoFit) else result
        if placed is None:
            lasts = not shape.order_dependent and not self.suspended
            self.no_room.add(shape.index, duration, self._stamp() if lasts else -1)
        return placed

    def _beside_moved(self, row: int, shape: Shape, duration: int, until: int) -> Allocation | None:
        """Place a job now by moving reservations to other devices at the same start; None if that does not help."""
        if not shape.reservable:
            return None
        proven = self.moves.place(row, shape, duration, self.cycle.now)
        return None if proven is None else self._placed(row, shape, proven, until)

    def _known_to_fail(self, shape: Shape, duration: int) -> bool:
        """Return whether a job of this shape and duration found no room since some was freed. False with bookings."""
        if self.state.books:
            return False
        return self.no_room.knows(shape.index, duration, -1 if self.suspended else self._stamp())

    def _stamp(self) -> int:
        """Return a counter of the changes that may let a job without a reservation start."""
        return self.state.capacity_version + self.state.node_version + self.forecast.opened

    def _serve_candidates(self, candidates: list[int]) -> None:
        """Serve the candidates whose state may change; skip those that certainly keep waiting."""
        state, at, rows = self.state, 0, np.array(candidates, dtype=np.int64)
        places = self.cycle.pending.places
        while at < len(rows):
            recorded, place = self.plain and places.item(candidates[at], P_RECORDED), None
            if recorded and not (state.books or self.suspended) and self._is_full():
                at, place = self.moves.first_candidate(rows, at, self._stamp(), self.lowest)
                if at == len(rows):
                    return
            row = candidates[at]
            if place is None:
                self._serve(row)
            else:
                until = self.forecast.estimates.end_if_started(state, row, self.cycle.now)
                placed = self._placed(row, state.shape_of(row), place, until)
                assert placed is not None, "only bookings keep a job from a place that is proven"
                self._start(row, placed)
            at += 1

    def _make_room(self, row: int, shape: Shape, until: int) -> Allocation | NotNow:
        """Evict running jobs so that a job fits without reserved capacity."""
        cycle = self.cycle
        assert cycle.evictor is not None
        blocked = cycle.reserved_space(until) if not shape.ask.reservation else NOTHING
        if len(blocked) == 0 and not self.state.books:
            return cycle.evictor.free_capacity(cycle, row, shape)
        cycle.placer.trial.restore(blocked)
        with cycle.beside_bookings(row):
            made = cycle.evictor.free_capacity(cycle, row, shape)
        cycle.placer.trial.evict(blocked)
        return made

    def _what_is_missing(self, row: int, shape: Shape) -> Reason:
        """Return why the job waits: no room even without reservations, or the booking or reservation in the way."""
        trial = self.cycle.placer.trial
        mark = trial.checkpoint()
        result = self.cycle.placer.place(shape, row)
        trial.rollback(mark)
        if isinstance(result, NoFit):
            return result
        if self.state.books and (kept := self.cycle.kept_by_booking(row, [shape])) is not None:
            return kept
        if shape.ask.reservation:
            return NoFit(0, shape.groups[0].count, 0)
        names = self.state.ids
        first = min([one for one in self._reserved_starts() if one[1] != row], default=(self.cycle.now, row))
        return Reserved(names[first[1]], first[0])

    def _reserved_starts(self) -> list[tuple[int, int]]:
        held = self.calendar.held
        return [(held[row][1], row) for row in self.state.reserved.keys() | self.cycle.reserved if row in held]
