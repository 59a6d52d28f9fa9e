"""Other devices for reservations, at the same starts, so that there is a place for one job more.

What is reserved is a time; which devices serve it may change as long as no reservation starts later. On nodes with one
GPU each a gang has a place wherever the count of free GPUs says so, once the reservations that begin later choose
again in the order of their starts. On other nodes this is an attempt: it may miss a place that another choice leaves.
"""

from __future__ import annotations

from kant.cluster.columns import POOL
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, Allocation
from kant.model.units import FOREVER
from kant.queueing.cycle_plan import CyclePlan

FAILURES = 4
"""Attempts at an earlier reservation that may fail in one cycle before no more are made."""


class ReservationMoves:
    """The reservations of one cycle, and which of them have moved. With more of them than `most` none moves."""

    def __init__(self, cycle: CyclePlan, most: int) -> None:
        assert cycle.forecast is not None
        self.cycle = cycle
        self.forecast = cycle.forecast
        self.calendar = cycle.forecast.calendar
        self.most = most
        self.failures = 0
        self.moved: dict[int, None] = {}
        self.undecided = False
        """Whether the job that `sooner` was last asked for may start earlier than was found."""

    @property
    def crowded(self) -> bool:
        """Whether there are more reservations than may move."""
        cycle = self.cycle
        return len(cycle.state.reserved) + cycle.newly_reserved - len(cycle.unreserved) > self.most

    def reserved(self) -> list[int]:
        """The jobs with a reservation on the calendar, as the plan leaves them."""
        cycle, calendar = self.cycle, self.calendar
        rows = (cycle.state.reserved.keys() | cycle.reserved) - cycle.unreserved
        return sorted([row for row in rows if row in calendar.held])

    def _alone(self, row: int) -> bool:
        """Whether no other job has a reservation on the calendar."""
        cycle, held = self.cycle, self.calendar.held
        for rows in (cycle.state.reserved, cycle.reserved):
            for other in rows:
                if other != row and other in held and other not in cycle.unreserved:
                    return False
        return True

    def sooner(self, row: int, shape: Shape, duration: int, before: int) -> tuple[int, Allocation] | None:
        """The first start that the count of free GPUs allows, if it is earlier than `before` and others can move."""
        self.undecided = False
        if shape.gpu_milli == 0 or not shape.reservable or self.crowded:
            return None
        if self._alone(row):
            return None
        if self.failures >= FAILURES:
            self.undecided = True
            return None
        own = row if row in self.calendar else -1
        start = self.calendar.least_start(shape, duration, self.cycle.now, own)
        if start >= before:
            return None
        pieces = self.place(row, shape, duration, start)
        if pieces is None:
            self.failures += 1
            self.undecided = True
            return None
        return start, pieces

    def place(self, row: int, shape: Shape, duration: int, start: int) -> Allocation | None:
        """A place for a job at `start`. Reservations that begin no earlier may move, and still start when they did.

        None where there is none, and then nothing has moved. Otherwise the job's own reservation is off the calendar.
        """
        if self.crowded:
            return None
        calendar, known = self.calendar, self.calendar.held
        rows = [other for other in self.reserved() if other == row or known[other][1] >= start]
        held = {other: known[other] for other in rows}
        calendar.lift(held)
        pieces = calendar.place_at(shape, duration, start, self.cycle.now)
        if pieces is not None:
            calendar.add(row, pieces, start, min(start + duration, FOREVER))
            others = sorted((other for other in rows if other != row), key=lambda other: (held[other][1], other))
            placed: list[int] = []
            for other in others:
                if not self._place_again(other, *held[other]):
                    break
                placed.append(other)
            calendar.remove(row)
            if len(placed) == len(others):
                calendar.settle()
                for other in others:
                    if calendar.allocation_of(other) is not held[other][0]:
                        self.moved[other] = None
                        self.forecast.moves(other)
                if row in held:
                    self.forecast.withdraws(row)
                return pieces
            for other in placed:
                calendar.remove(other)
        calendar.settle(back=True)
        return None

    def _place_again(self, row: int, old: Allocation, start: int, end: int) -> bool:
        """Commit a reservation again at its own start: where it was, or else on other devices of the same pools."""
        calendar, state = self.calendar, self.cycle.state
        calendar.add(row, old, start, end)
        if calendar.holds(row):
            return True
        calendar.remove(row)
        pools = 0
        for pool in set(state.table[old[:, NODE], POOL].tolist()):
            pools |= 1 << pool
        for option in self.cycle.admission.options(row, state.shape_of(row)):
            if option.pool_bits & pools:
                pieces = calendar.place_at(option, end - start, start, self.cycle.now)
                if pieces is not None:
                    calendar.add(row, pieces, start, end)
                    return True
        return False

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
