"""Solve a calendar: the answer is a plan, or the bookings that collide, or the best plan found within the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kant.model.errors import InputError
from kant.optimize.calendar.attempts import SLICE, TOUR, Attempts, SearchBudget, attempts_at
from kant.optimize.calendar.booking import LARGEST, LineBooking
from kant.optimize.calendar.kernels import FOUND, NONE
from kant.optimize.calendar.sections import Numbers, peak, sections_of

TRIAL = 2 * TOUR * SLICE
"""The limit, in search nodes, for deciding whether bookings still collide after some are left out."""


def collision(bookings: Sequence[LineBooking], capacity: int, budget: SearchBudget) -> tuple[tuple[int, ...], bool]:
    """The rows of bookings that do not fit together, and whether they are known to be a minimal set.

    Groups of bookings are left out while the others still collide, large groups first: the deletion filter of J. W.
    Chinneck and E. W. Dravnieks, ORSA Journal on Computing 3(2), 1991. If the search cannot decide, the bookings stay
    in the set; once the budget is used up, the set stays as it is.
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


def _overload(bookings: Sequence[LineBooking], capacity: int) -> list[int] | None:
    """The smallest set of bookings that exceed the capacity at one time; None if there is no such set."""
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


def pinned_collision(bookings: Sequence[LineBooking], capacity: int) -> tuple[int, ...]:
    """A pinned booking that extends beyond the line, or two that collide; empty if there are none."""
    pinned = [(i, b, b.offset) for i, b in enumerate(bookings) if b.offset is not None]
    for i, one, first in pinned:
        if first + one.gpus > capacity:
            return (i,)
    for i, one, first in pinned:
        for j, other, second in pinned:
            if j < i and first < second + other.gpus and second < first + one.gpus and one.meets(other):
                return (j, i)
    return ()


Status = Literal["fits", "infeasible", "unknown"]

NODES = 10_000_000_000
"""The default limit of a search, in nodes."""

SHARE = 0.8
"""The share of the search nodes spent on whether the calendar fits. The rest is for the answer if it does not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for a calendar on a line of `capacity` GPUs.

    `fits`: `offsets` is a plan. `infeasible`: there is no plan, and `collide` has bookings (rows) that do not fit
    together; if `minimal`, they fit once any one of them is left out. `unknown`: no plan was found within the limit,
    and none is proven impossible: `lower_bound` <= `capacity` < `needed`. Unless the calendar fits, `offsets` is a plan
    for the shortest longer line that was found.
    """

    status: Status
    capacity: int
    needed: int
    """The number of GPUs that the plan `offsets` needs."""
    offsets: tuple[int, ...]
    """The first GPU of each booking; empty if bookings with a given offset collide."""
    lower_bound: int
    """It is proven that no smaller capacity holds the calendar."""
    first_fit: int
    """The number of GPUs that first fit needs if the bookings with the most GPUs are placed first."""
    nodes: int
    """The number of search nodes visited."""
    collide: tuple[int, ...] = ()
    minimal: bool = False


def solve(bookings: Sequence[LineBooking], capacity: int, nodes: int = NODES, limit: float = math.inf) -> Answer:
    """Fit the bookings on a line of `capacity` GPUs.

    The answer may be `unknown` after `nodes` search nodes, or after `limit` deterministic seconds (counted in nodes;
    each is about one core-second). Raises InputError if nothing is booked, or the capacity is out of range.
    """
    if not 1 <= capacity <= LARGEST:
        raise InputError("the capacity", f"from 1 to {LARGEST:,} GPUs", capacity)
    attempts, bound, fits = _begin(bookings)
    if pinned_collision(bookings, LARGEST):
        return Answer("infeasible", capacity, 0, (), bound, 0, 0, pinned_collision(bookings, capacity), True)
    by_first_fit, best = fits[0][0], min(fits, key=lambda plan: plan[0])
    budget = _budget(attempts, nodes, limit)
    if bound <= capacity < best[0]:
        found, offsets = attempts.fit(capacity, budget, int(budget.nodes * SHARE))
        if found == FOUND:
            best = capacity, offsets
        elif found == NONE:
            bound = capacity + 1
        else:  # a plan for a shorter line is valid for this one, and so is a proof for a longer one
            best, bound = _shorten(attempts, bound, best, budget, TOUR * SLICE)
    if best[0] <= capacity:
        return _answer("fits", capacity, best, bound, by_first_fit, attempts)
    collide: tuple[int, ...] = ()
    minimal = False
    if bound > capacity:
        collide, minimal = collision(bookings, capacity, budget)
        best, bound = _shorten(attempts, bound, best, budget, TOUR * SLICE)
    status: Status = "infeasible" if bound > capacity else "unknown"
    return _answer(status, capacity, best, bound, by_first_fit, attempts, collide, minimal)


def solve_least(bookings: Sequence[LineBooking], nodes: int = NODES, limit: float = math.inf) -> Answer:
    """The plan on the shortest line found. The line is the shortest possible if `needed` equals `lower_bound`.

    The search ends after `nodes` or `limit`, as in `solve`. Raises InputError if nothing is booked.
    """
    attempts, bound, fits = _begin(bookings)
    pinned = pinned_collision(bookings, LARGEST)
    if pinned:
        return Answer("infeasible", bound, 0, (), bound, 0, 0, pinned, True)
    best, budget, trial = min(fits, key=lambda plan: plan[0]), _budget(attempts, nodes, limit), TOUR * SLICE
    while bound < best[0] and not budget.spent:
        best, bound = _shorten(attempts, bound, best, budget, trial)
        trial *= 4
    return _answer("fits", best[0], best, bound, fits[0][0], attempts)


def _budget(attempts: Attempts, nodes: int, limit: float) -> SearchBudget:
    return SearchBudget(nodes if limit == math.inf else min(nodes, attempts.nodes_in(limit)))


def _begin(bookings: Sequence[LineBooking]) -> tuple[Attempts, int, list[tuple[int, Numbers]]]:
    if not bookings:
        raise InputError("the calendar", "at least one booking")
    attempts = attempts_at(bookings)
    bound = max(peak(attempts.sections), max((b.offset or 0) + b.gpus for b in bookings))
    return attempts, bound, attempts.first_fits()


def _shorten(
    attempts: Attempts, bound: int, best: tuple[int, Numbers], budget: SearchBudget, trial: int
) -> tuple[tuple[int, Numbers], int]:
    """Look for a plan on a shorter line, by bisection, and a better lower bound. Each step searches `trial` nodes."""
    low, middle = bound, bound
    while low < best[0] and not budget.spent:
        found, offsets = attempts.fit(middle, budget, trial)
        if found == FOUND:
            best = int((offsets + attempts.sections.gpus).max()), offsets
        else:
            low = middle + 1
        if found == NONE:
            bound = max(bound, middle + 1)
        middle = (low + best[0]) // 2
    return best, bound


def _answer(
    status: Status, capacity: int, best: tuple[int, Numbers], bound: int, by_first_fit: int, attempts: Attempts,
    collide: tuple[int, ...] = (), minimal: bool = False,
) -> Answer:  # fmt: skip
    offsets = best[1]
    needed = int((offsets + attempts.sections.gpus).max())
    found = tuple(offsets.tolist())
    return Answer(status, capacity, needed, found, bound, by_first_fit, attempts.nodes, collide, minimal)
