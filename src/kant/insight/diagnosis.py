"""Diagnosis: what keeps a waiting job from starting, found on a trial that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kant.cluster.columns import J_RETURNS
from kant.cluster.shapes import Shape
from kant.model.decision import (
    BackOff,
    BaseJobWaits,
    Behind,
    Booked,
    Closed,
    NoFit,
    OutOfBudget,
    Outranked,
    OverQuota,
    Reason,
    Reserved,
)
from kant.model.errors import StateError
from kant.model.placement import NODE, Allocation, Reservation
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler


class Diagnosis:
    """Explains why jobs of a scheduler's state wait at `now`: by default, and at least, the time of the last event.

    All trials for an answer are rolled back, so scheduling is not affected. A diagnosis is valid until the next event.
    """

    def __init__(self, scheduler: Scheduler, now: int | None = None) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.now = self.state.now if now is None else max(now, self.state.now)
        self.profile = scheduler.profile
        self.cycle = scheduler.begin(self.now)  # rebuilds the placer where node rows have changed
        self.placer = scheduler.placer
        self.cycle.evictor = None  # no job is evicted for an answer
        self.admission = self.cycle.admission
        self.uses_quotas = self.profile.discipline.quotas

    def row(self, job: str) -> int:
        """Return the row of a waiting job. Raises StateError for a job that does not wait."""
        row = self.state.row_of(job)
        if row not in self.state.pending:
            raise StateError(f"job {job!r} does not wait")
        return row

    def why(self, row: int) -> Reason | None:
        """Return the one reason why the job waits. None if nothing keeps the next cycle from starting it.

        The reasons are checked in this order: the job can never start; it may not be tried now; another job of its
        bucket goes first; it lacks quota or free resources.
        """
        return never_starts(self.cycle, row) or self.gating_reason(row) or self.blocked_by(row) or self.missing(row)[0]

    def gating_reason(self, row: int) -> Closed | OutOfBudget | BaseJobWaits | BackOff | Booked | None:
        """Return what keeps the job from being tried, however much is free: its queue is closed or has no budget left,
        its base job waits, its back-off has not ended, or its reservation has not begun. None if nothing does.
        """
        if not self.uses_quotas:
            return None
        closed = self.admission.closed(row)
        if closed is None and self.state.jobs[row, J_RETURNS]:
            back_off = self.profile.requeue.back_off(self.state, row)
            return back_off if back_off is not None and back_off.until > self.now else None
        return closed

    def blocked_by(self, row: int) -> Behind | Outranked | None:
        """Return the job that must start first: the head of the bucket, or one of higher priority; or None."""
        head, shape_of = self.scheduler.pending.head_before(row), self.state.shape_of
        if head is None:
            return self.profile.discipline.held_by(self.cycle, row)
        return Behind(self.state.ids[head], shape_of(head) is shape_of(row))

    def missing(self, row: int) -> tuple[Reason | None, Shape]:
        """Return what the job would lack if tried now (None: nothing), and the shape for the GPU model concerned.

        If there are several GPU models, one with room is preferred, then one that is full, then one without quota.
        """
        shape = self.state.shape_of(row)
        found: list[tuple[Reason, Shape]] = []
        for option in self.admission.options(row, shape) if self.uses_quotas else [shape]:
            reason = (self.admission.shortage(row, option) if self.uses_quotas else None) or self.missing_place(
                row, option
            )
            if reason is None:
                return None, option
            found.append((reason, option))
        return min(found, key=lambda pair: (isinstance(pair[0], OverQuota), isinstance(pair[0], NoFit)))

    def missing_place(self, row: int, shape: Shape) -> NoFit | Reserved | Booked | None:
        """Return why the job cannot be placed now. None if it can, on GPUs that no reservation needs."""
        with self.rolled_back(), self.without_reservation_of(row):
            beside = self.cycle.place(row, shape)
            if isinstance(beside, np.ndarray):
                return None
            kept = self.cycle.kept_by_booking(row, [shape]) if self.state.books else None
            if kept is not None or shape.ask.reservation:
                return kept or beside
            free = self.placer.place(shape, row) if self.cycle.forecast is not None else beside
            return free if isinstance(free, NoFit) else self._reserved(row, free) or beside

    def _reserved(self, row: int, place: Allocation) -> Reserved | None:
        """Return the first reservation that needs a part of `place`, which is free now; if none does, the first of all.

        None if no other job holds a reservation: then reservations of GPUs that begin later need these resources.
        """
        assert self.cycle.forecast is not None
        until = self.cycle.forecast.estimates.end_if_started(self.state, row, self.now)
        nodes = set(place[:, NODE].tolist())

        def rank(entry: tuple[int, Reservation]) -> tuple[bool, bool, int, int]:
            other, reservation = entry
            elsewhere = nodes.isdisjoint(reservation.allocation[:, NODE].tolist())
            return reservation.start >= until, elsewhere, reservation.start, other

        others = [(other, reservation) for other, reservation in self.state.reserved.items() if other != row]
        if not others:
            return None
        first, reservation = min(others, key=rank)
        return Reserved(self.state.ids[first], reservation.start)

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Roll the trial back when the block ends."""
        mark = self.placer.trial.checkpoint()
        try:
            yield
        finally:
            self.placer.trial.rollback(mark)

    @contextmanager
    def without_reservation_of(self, row: int) -> Iterator[None]:
        """Take the job's own reservation out of the calendar within the block."""
        calendar = self.cycle.forecast.calendar if self.cycle.forecast is not None else None
        if calendar is None or row not in calendar:
            yield
            return
        held = calendar.allocation_of(row), calendar.start_of(row), calendar.expected_end(row)
        calendar.remove(row)
        try:
            yield
        finally:
            calendar.add(row, *held)


def waiting_order(scheduler: Scheduler, now: int | None = None) -> list[str]:
    """Return the waiting jobs in the order of the profile at `now`, the next to be tried first."""
    if not scheduler.state.pending:
        return []
    cycle = Diagnosis(scheduler, now).cycle
    rows = cycle.waiting_rows()
    return [scheduler.state.ids[row] for row in rows[cycle.ranking(rows)].tolist()]


def waiting_reasons(scheduler: Scheduler, now: int | None, jobs: Sequence[str]) -> list[Reason | None]:
    """Return why each of these jobs waits. None for a job that nothing keeps the next cycle from starting.

    Raises StateError for a job that does not wait.
    """
    if not jobs:
        return []
    diagnosis = Diagnosis(scheduler, now)
    return [diagnosis.why(diagnosis.row(job)) for job in jobs]
