"""Moves of reservations to other devices, at the same starts, so that one more job fits.

This module decides which reservations may move; `placement/calendar/moves.py` finds the other devices.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_SHAPE, POOL, Table
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, Allocation
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.waiting import P_RECORDED

FAILURES = 4
"""The most failed attempts at an earlier reservation in one cycle."""


class ReservationMoves:
    """The reservations of one cycle, and which of them have moved. If there are more than `most`, all stay."""

    def __init__(self, cycle: CyclePlan, most: int) -> None:
        assert cycle.forecast is not None
        self.cycle = cycle
        self.forecast = cycle.forecast
        self.calendar = cycle.forecast.calendar
        self.most = most
        self.attempts: Table = np.full(1, FAILURES, dtype=np.int64)  # how many attempts may still fail
        self.moved: dict[int, None] = {}

    def reserved(self) -> Table | None:
        """Return the jobs with a reservation after the plan so far, and the index of the shape with which each may
        move: that of its reserved GPU model; -1 for several models. None if there are more than `most` reservations.
        """
        cycle, state, held = self.cycle, self.cycle.state, self.calendar.held
        if len(state.reserved) + cycle.newly_reserved - len(cycle.unreserved) > self.most:
            return None
        rows = [row for row in (state.reserved.keys() | cycle.reserved) - cycle.unreserved if row in held]
        jobs = state.jobs
        if not cycle.limited:
            return np.array([(row, jobs.item(row, J_SHAPE)) for row in rows], dtype=np.int64)
        return np.array([(row, self._as_it_is(row, held[row][0])) for row in rows], dtype=np.int64)

    def _as_it_is(self, row: int, held: Allocation) -> int:
        state, pools = self.cycle.state, 0
        for pool in set(state.table[held[:, NODE], POOL].tolist()):
            pools |= 1 << pool
        options = self.cycle.admission.options(row, state.shape_of(row))
        return next((option.index for option in options if pools & ~option.pool_bits == 0), -1)

    def sooner(self, row: int, shape: Shape, duration: int, before: int) -> tuple[int, Allocation] | None:
        """Return the first start (µs) and devices if other reservations move; None if it is not before `before`."""
        reserved = self.reserved() if shape.gpu_milli and shape.reservable else None
        if reserved is None or len(reserved) == 0 or self.attempts.item(0) <= 0:
            return None
        start = self.calendar.least_start(shape, duration, self.cycle.now)
        if start >= before:
            return None
        pieces = self.place(row, shape, duration, start)
        if pieces is None:
            self.attempts[0] -= 1
            return None
        return start, pieces

    def place(self, row: int, shape: Shape, duration: int, start: int) -> Allocation | None:
        """Place a job at `start`. Reservations that begin no earlier may move to other devices at the same start.

        None if the job does not fit; then nothing has moved. Otherwise the job's own reservation is off the calendar.
        """
        reserved = self.reserved()
        if reserved is None:
            return None
        found = self.calendar.make_way(reserved, row, shape, duration, start, self.cycle.now)
        if found is None:
            return None
        self._follow(row, found[1])
        return found[0]

    def first_sooner(self, rows: Table, at: int, given: int) -> tuple[int, bool, tuple[int, Allocation] | None]:
        """Return the first of `rows` from `at` on that needs a decision; each of them has a reservation.

        Returns its index in `rows`; whether it keeps its reservation, and its wait must be recorded; and the start and
        devices of an earlier reservation, if it can have one. If neither, `_serve` must decide. `given`: the run time
        of the jobs, µs; -1: as in their columns.
        """
        cycle, state = self.cycle, self.cycle.state
        recorded, promised = cycle.pending.places, self.forecast.estimates.promised
        at, kept, found, moved = self.calendar.first_sooner(
            rows, at, recorded, P_RECORDED, state.jobs, promised, given, self.reserved(), self.attempts, cycle.now,
            self.forecast.opened,
        )  # fmt: skip
        if moved:
            self._follow(rows.item(at), moved)
        return at, kept, found

    def first_candidate(self, rows: Table, at: int, stamp: int, lowest: int) -> tuple[int, Allocation | None]:
        """Return the first of `rows` from `at` on that can, or possibly can, start now without a reservation.

        Returns its index in `rows`, and its allocation if others moved. `stamp` counts changes that may let jobs start.
        """
        cycle = self.cycle
        at, place, moved = self.calendar.first_candidate(
            rows, at, cycle.pending.places, P_RECORDED, cycle.state.jobs, self.forecast.estimates.promised, stamp,
            lowest, self.reserved(), cycle.now,
        )  # fmt: skip
        if place is not None:
            self._follow(rows.item(at), moved)
        return at, place

    def _follow(self, row: int, moved: list[int]) -> None:
        for other in moved:
            self.moved[other] = None
            self.forecast.moves(other)
        self.forecast.withdraws(row)

    def tell(self) -> None:
        """Write the moves into the plan."""
        for row in self.moved:
            if row in self.calendar and row not in self.cycle.unreserved:
                self.cycle.reserve(
                    row,
                    self.calendar.allocation_of(row),
                    self.calendar.start_of(row),
                    self.calendar.expected_end(row),
                )
