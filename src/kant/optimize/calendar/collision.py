"""Which bookings of an infeasible calendar collide: a set that fits as soon as any one of them is left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.optimize.calendar.attempts import SLICE, TOUR, Budget, attempts_at
from kant.optimize.calendar.booking import Booking
from kant.optimize.calendar.kernels import FOUND, NONE
from kant.optimize.calendar.sections import sections_of

TRIAL = 2 * TOUR * SLICE
"""The node limit for the question whether the remaining bookings collide without some of them."""


def collision(bookings: Sequence[Booking], capacity: int, budget: Budget) -> tuple[tuple[int, ...], bool]:
    """The rows of bookings that do not fit together, and whether the set is known to be minimal.

    Parts are left out as long as the rest still collides, large parts first: the deletion filter of J. W. Chinneck and
    E. W. Dravnieks, ORSA Journal on Computing 3(2), 1991. Bookings stay in the set if the budget leaves the question
    open; when it is spent the set stays as it is.
    """
    pinned = pinned_collision(bookings, capacity)
    if pinned:
        return pinned, True
    rows = _overload(bookings, capacity) or list(range(len(bookings)))
    minimal = True
    size = max(len(rows) // 2, 1)
    while True:
        k = 0
        while k < len(rows):
            rest = rows[:k] + rows[k + size :]
            found = FOUND
            if rest and budget.spent:
                return tuple(rows), False
            if rest:
                found, _ = attempts_at([bookings[i] for i in rest]).fit(capacity, budget, TRIAL)
            if found == NONE:
                rows = rest
            else:
                minimal = minimal and (found == FOUND or size > 1)
                k += size
        if size == 1:
            return tuple(rows), minimal
        size = max(size // 2, 1)


def _overload(bookings: Sequence[Booking], capacity: int) -> list[int] | None:
    """The largest bookings at one time that exceed the capacity together; of such sets the smallest."""
    sections = sections_of(bookings)
    best: list[int] | None = None
    for k in range(sections.covers.shape[1]):
        rows = np.flatnonzero(sections.covers[:, k])
        rows = rows[np.argsort(-sections.gpus[rows], kind="stable")]
        reach = np.cumsum(sections.gpus[rows])
        if reach[-1] > capacity:
            needed = int(np.argmax(reach > capacity)) + 1
            if best is None or needed < len(best):
                best = sorted(rows[:needed].tolist())
    return best


def pinned_collision(bookings: Sequence[Booking], capacity: int) -> tuple[int, ...]:
    """A pinned booking that leaves the line, or two that collide; empty if there is none."""
    pinned = [(i, b, b.offset) for i, b in enumerate(bookings) if b.offset is not None]
    for i, one, first in pinned:
        if first + one.gpus > capacity:
            return (i,)
    for i, one, first in pinned:
        for j, other, second in pinned:
            if j < i and first < second + other.gpus and second < first + one.gpus and one.meets(other):
                return (j, i)
    return ()
