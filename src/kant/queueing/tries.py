"""Tries the waiting jobs of a cycle: the callbacks of `service_order.py`, which use the cycle's trial."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster.shapes import Shape
from kant.model.decision import Booked, NoFit, OutOfBudget, Reason
from kant.model.placement import Allocation
from kant.queueing.admission import awaits_node_until
from kant.queueing.ports import NO_CANDIDATES, NOT_NOW, NotNow
from kant.queueing.service_order import InOrder, Nominate, make_in_order, make_nominate
from kant.queueing.waiting import P_RECORDED
from kant.queueing.walk import Walk

if TYPE_CHECKING:
    from kant.queueing.cycle_plan import CyclePlan
    from kant.queueing.priority import PriorityHolds


class Tries(Walk):
    """The jobs that a cycle tries, and what has been found about the current job."""

    def __init__(self, cycle: CyclePlan, holds: PriorityHolds | None = None) -> None:
        self.pending, self.share = cycle.pending, cycle.share if cycle.order.shares else None
        self.cycle, self.holds = cycle, holds
        self.placed: Allocation  # devices of the current job, taken on the trial
        self.lacks: dict[int, Reason] = {}  # why it cannot start, by index of shape; -1: in any shape
        self.failed = NO_CANDIDATES  # why eviction did not help the current job
        self._plain = not cycle.limited and cycle.forecast is None and not cycle.state.health.bad

    def is_held(self, row: int, shape: Shape) -> bool:
        assert self.holds is not None
        self._holding = self.holds.holders(row, shape)
        return self._holding is not None

    def fits_beside(self, row: int, shape: Shape) -> bool:
        assert self.holds is not None and self._holding is not None
        result = self.holds.beside(row, shape, self._holding)
        if not isinstance(result, np.ndarray):
            self.lacks = {-1: result}
            return False
        self.placed = result
        return True

    def options(self, row: int, shape: Shape) -> list[Shape]:
        closed = self.cycle.admission.closed(row)
        self.lacks, self.failed = {}, NO_CANDIDATES
        if closed is None:
            self._options = self.cycle.admission.options(row, shape)
            return self._options
        self.lacks[-1] = closed
        if isinstance(closed, OutOfBudget):
            self.failed = NotNow(closed.until, no_candidates=True)
        elif self.cycle.evictor is not None:
            self.failed = NOT_NOW
        return []

    def in_quota(self, row: int, option: Shape) -> bool:
        lack = self.cycle.admission.shortage(row, option)
        if lack is not None:
            self.lacks[option.index] = lack
        return lack is None

    def fits(self, row: int, option: Shape) -> bool:
        cycle = self.cycle
        result = cycle.placer.place(option, row) if self._plain else cycle.place(row, option)
        if not isinstance(result, NoFit):
            self.placed = result
            return True
        if cycle.limited:
            self.lacks[option.index] = result
        else:
            self.lacks, self.failed = {option.index: result}, NO_CANDIDATES
        return False

    def frees_capacity(self, row: int, option: Shape) -> bool:
        cycle, node_wait = self.cycle, 0
        assert cycle.evictor is not None
        if (cycle.node_waits or option.ask.node_wait) and isinstance(self.lacks[option.index], NoFit):
            node_wait = awaits_node_until(cycle.state, row, cycle.now)
        if node_wait:
            made: Allocation | NotNow = NotNow(node_wait)
        elif not cycle.state.books:
            made = cycle.evictor.free_capacity(cycle, row, option)
        else:
            with cycle.beside_bookings(row):
                made = cycle.evictor.free_capacity(cycle, row, option)
        if not isinstance(made, NotNow):
            self.placed = made
            return True
        self.failed = made if self.failed is NO_CANDIDATES else made & self.failed
        return False

    def start(self, entry: int, row: int, shape: Shape) -> None:
        self.cycle.start(row, self.placed)
        self.pending.took(self.bucket)

    def step_aside(self, entry: int, row: int, shape: Shape) -> None:
        self.cycle.hold(row, self.lacks[-1])
        self.skip()

    def sleep(self, entry: int, row: int, shape: Shape) -> None:
        pending, books = self.pending, self.cycle.state.books
        (reason,) = self.lacks.values() if len(self.lacks) == 1 and not books else (self.reason(row),)
        if not pending.places.item(row, P_RECORDED):
            self.cycle.hold(row, reason)
        pending.sleep(self.bucket, shape, self.failed, not isinstance(reason, NoFit | Booked))
        self.slept = True

    def reason(self, row: int) -> Reason:
        """Return why the job cannot start. NoFit on a model with quota explains more than missing quota on another."""
        lacks = list(self.lacks.values())
        reason = ([lack for lack in lacks if isinstance(lack, NoFit)] or lacks)[0]
        if not self.cycle.state.books or not isinstance(reason, NoFit):
            return reason
        return self.cycle.kept_by_booking(row, self._options) or reason


@cache
def _built(of: type[Tries], limited: bool, evicts: bool, holds: bool) -> tuple[Nominate, InOrder]:
    nominate = make_nominate(
        of.options if limited else None, of.in_quota if limited else None, of.fits,
        of.frees_capacity if evicts else None, lambda function: function,
    )  # fmt: skip
    return nominate, make_in_order(
        of.next_job, of.next_job, of.is_held if holds else None, of.fits_beside if holds else None, nominate, of.start,
        of.step_aside, of.sleep, lambda function: function,
    )  # fmt: skip


def nominate(cycle: CyclePlan, row: int, shape: Shape) -> Allocation | Reason:
    """Place a whole job; return its allocation, or why it cannot start now (`CyclePlan.nominate`)."""
    tries = Tries(cycle)
    can_start = _built(Tries, cycle.limited, cycle.evictor is not None, False)[0]
    return tries.placed if can_start(tries, row, shape) else tries.reason(row)


def find_place(cycle: CyclePlan, row: int, shape: Shape) -> Allocation | None:
    """Place a whole job on free capacity, within its quota; return its allocation, None if it does not fit."""
    tries = Tries(cycle)
    return tries.placed if _built(Tries, cycle.limited, False, False)[0](tries, row, shape) else None


def try_in_order(cycle: CyclePlan, holds: PriorityHolds | None = None, tries: type[Tries] = Tries) -> None:
    """Try the first jobs of the buckets, best first, except those that a blocked job of higher priority holds.

    `tries` has the callbacks for each job: a discipline may pass a subclass of `Tries` that skips jobs in `next_job`.
    """
    pending, free = cycle.pending, None
    if pending.may_try or pending.released:
        of: Any = tries  # a class is hashable, which mypy denies
        _built(of, cycle.limited, cycle.evictor is not None, holds is not None)[1](tries(cycle, holds))
    if holds is not None:
        free, until = holds.split(pending.heads())
        cycle.wake_at(until)
    if pending.retry_until > cycle.now:
        cycle.wake_at(pending.wakes_at(free))
