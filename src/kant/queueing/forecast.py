"""Forecast: until when running jobs and reservations hold which devices, kept in step with the state."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from kant.cluster.columns import J_STARTED, Narrow, Table
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.queueing.estimates import Estimates


class NoRoom(Protocol):
    """Remembers for which run times a shape found no room (`placement/calendar/no_room.py`)."""

    now: int

    def add(self, shape: int, duration: int, stamp: int) -> None: ...
    def knows(self, shape: int, duration: int, stamp: int) -> bool: ...


class Calendar(Protocol):
    """Which job holds which devices from when until when (`placement/calendar/calendar.py`). Keys are job rows."""

    held: dict[int, tuple[Allocation, int, int]]

    @property
    def no_room(self) -> NoRoom: ...
    def __contains__(self, key: object) -> bool: ...
    def add(self, key: int, allocation: Allocation, start: int, end: int) -> None: ...
    def remove(self, key: int) -> None: ...
    def move(self, key: int, start: int, end: int) -> None: ...
    def start_of(self, key: int) -> int: ...
    def expected_end(self, key: int) -> int: ...
    def allocation_of(self, key: int) -> Allocation: ...
    def forget(self) -> None: ...
    def lack(self, lost: dict[int, int], now: int) -> None: ...
    def book(self, booked: Iterable[tuple[Allocation, int, int]]) -> None: ...
    def earliest(self, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None: ...
    def least_start(self, shape: Shape, duration: int, not_before: int) -> int: ...
    def make_way(
        self, reserved: Table, row: int, shape: Shape, duration: int, start: int, now: int
    ) -> tuple[Allocation, list[int]] | None: ...
    def first_sooner(
        self, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, given: int,
        reserved: Table | None, attempts: Table, now: int, opened: int,
    ) -> tuple[int, bool, tuple[int, Allocation] | None, list[int]]: ...  # fmt: skip
    def first_candidate(
        self, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, stamp: int, lowest: int,
        reserved: Table | None, now: int,
    ) -> tuple[int, Allocation | None, list[int]]: ...  # fmt: skip
    def ask_again(self, rows: list[int]) -> None: ...
    def holds(self, key: int) -> bool: ...
    def blocked(self, now: int, until: int) -> Allocation: ...


class Forecast:
    """The commitments of devices: to running jobs until their expected ends, and to reservations.

    The current plan may change them; the next `refresh` undoes these changes. `opened` counts how often capacity came
    free sooner than planned, in the state or by a plan: then a search that failed may be repeated. `tightened`: a
    commitment was added or lasts longer, so reservations may no longer hold.
    """

    def __init__(self, state: ClusterState, calendar: Calendar, estimates: Estimates) -> None:
        self.state = state
        self.calendar = calendar
        self.estimates = estimates
        self.opened = 1
        self.tightened = True
        self._ends: list[tuple[int, int]] = []  # heap of expected ends of running jobs
        self._written: set[int] = set()  # rows whose commitment a plan has changed
        self._reserved: set[int] = set()  # rows that held a reservation at the last `refresh`
        self._booked = 0  # the version of the bookings on the calendar
        self._marks = (-1, -1)  # versions of quotas and nodes, whose changes may let a job start
        self._nodes = (
            0,
            0,
            0,
        )  # the versions of the fleet, the node sets and the counter tables that the calendar has seen

    def refresh(self, now: int, moved: list[int] | None) -> None:
        """Follow the state; postpone the expected end of jobs that outlive their estimate.

        `moved` has the rows that arrived, left, started or stopped, each once; None if unknown.
        """
        state = self.state
        if moved is None:
            moved = [*state.running, *state.pending]
        for row in dict.fromkeys([*self._written, *moved]):
            self._reconcile(row, now)
        self.calendar.ask_again(moved)
        self._written.clear()
        # Reservations may also change by decisions of another scheduler, as when a journal is followed.
        for row in sorted(self._reserved.difference(state.reserved)):
            self._reconcile(row, now)
        held = self.calendar.held
        for row, reservation in state.reserved.items():
            if row not in held or held[row][1] != reservation.start:
                self._reconcile(row, now)
        self._reserved = set(state.reserved)
        while self._ends and self._ends[0][0] <= now:
            end, row = heappop(self._ends)
            if row in state.running and row in self.calendar and self.calendar.expected_end(row) == end:
                later = self.estimates.end(state, row, now)
                self.calendar.move(row, self.calendar.start_of(row), later)
                heappush(self._ends, (later, row))
                self.opened += 1  # a postponed end may let others reserve earlier
                self.tightened = True
        marks = (state.quota_usage.quota_version if state.quota_usage.tree is not None else 0, state.node_version)
        if marks != self._marks:
            if state.node_version:
                self.calendar.lack(state.health.lost, now)
            nodes = state.fleet_version, state.shapes.node_sets.version, state.counter_tables.version
            if nodes != self._nodes:
                self._nodes = nodes
                self.calendar.forget()
            self._marks = marks
            self.opened += 1
            self.tightened = True
        if state.books and state.booking_version != self._booked:
            self._booked = state.booking_version
            self.calendar.book((one.allocation, one.start, one.end) for one in state.bookings.values() if one.end > now)
            self.opened += 1
            self.tightened = True

    def _reconcile(self, row: int, now: int) -> None:
        """Make the commitment of one job match the state."""
        state, calendar = self.state, self.calendar
        wanted: tuple[Allocation, int, int] | None = None
        if row in state.running:
            start = int(state.jobs[row, J_STARTED])
            wanted = (state.running[row], start, self.estimates.end(state, row, now))
        elif row in state.reserved:
            promise = state.reserved[row]
            wanted = (promise.allocation, promise.start, promise.end)
        if row in calendar:
            if (
                wanted is not None
                and calendar.allocation_of(row) is wanted[0]
                and (calendar.start_of(row), calendar.expected_end(row)) == wanted[1:]
            ):
                return
            if calendar.expected_end(row) > (now if wanted is None else wanted[2]):
                self.opened += 1
            calendar.remove(row)
        if wanted is not None:
            calendar.add(row, *wanted)
            self.tightened = True
            if row in state.running and wanted[2] < FOREVER:
                heappush(self._ends, (wanted[2], row))

    def advanced(self, opened: int, tightened: bool) -> None:
        """Record that compiled code has updated the calendar from the state (`sim/reserve.py`)."""
        self.opened, self.tightened = opened, tightened
        ends = ((self.calendar.expected_end(row), row) for row in self.state.running)
        self._ends = sorted(one for one in ends if one[0] < FOREVER)
        self._reserved = set(self.state.reserved)

    # --- written by the plan --------------------------------------------------------------------------------

    def starts(self, row: int, allocation: Allocation, now: int, end: int) -> None:
        """Enter the devices of a job that the plan starts in the calendar, from `now` until `end` (µs)."""
        promise = self.state.reserved.get(row)
        if promise is not None and (promise.start > now or not np.array_equal(promise.allocation, allocation)):
            self.opened += 1
        self.withdraws(row)
        self.calendar.add(row, allocation, now, end)
        if end < FOREVER:
            heappush(self._ends, (end, row))

    def reserves(self, row: int, allocation: Allocation, start: int, end: int) -> None:
        """Enter devices that the plan reserves in the calendar, from `start` until `end` (µs)."""
        self.withdraws(row)
        self.calendar.add(row, allocation, start, end)

    def moves(self, row: int) -> None:
        """Note that the plan has moved a reservation to other devices."""
        self._written.add(row)
        self.opened += 1

    def stops(self, row: int) -> None:
        """Remove the commitment of a job that the plan stops, or whose reservation it releases."""
        self.opened += 1
        self.withdraws(row)

    def withdraws(self, row: int) -> None:
        """Take a job's commitment off the calendar; the next `refresh` restores it."""
        self._written.add(row)
        if row in self.calendar:
            self.calendar.remove(row)
