"""Inquiry: what keeps a waiting job, found out on a trial that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kant.cluster.columns import J_RETURNS
from kant.cluster.shapes import Shape
from kant.model.decision import BackOff, Behind, Closed, CoreWaits, NoFit, OverQuota, Reason, Reserved
from kant.model.errors import Violation
from kant.model.placement import NODE, Allocation, Reservation
from kant.model.units import FOREVER
from kant.queueing.turn import Turn
from kant.scheduler.cycle import Scheduler, never_starts


class Inquiry:
    """Questions about the state that a scheduler stands before, at `now` (by default and at least its last event).

    Whatever is tried for an answer is rolled back: the scheduler decides as if nobody had asked. An inquiry is good
    until the next event.
    """

    def __init__(self, scheduler: Scheduler, now: int | None = None) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.now = self.state.now if now is None else max(now, self.state.now)
        self.profile = scheduler.profile
        self.placer = scheduler.placer
        scheduler.catch_up(self.now)
        self.turn = Turn(
            scheduler.snapshot, self.profile.order, scheduler.waiting, self.placer, None, scheduler.forecast
        )
        self.admission = self.turn.admission
        self.heeds_quotas = self.profile.discipline.quotas

    def row(self, job: str) -> int:
        """The row of a waiting job. Raises Violation for one that does not wait."""
        row = self.state.row_of(job)
        if row not in self.state.pending:
            raise Violation(f"job {job!r} does not wait")
        return row

    def why(self, row: int) -> Reason | None:
        """The one reason for which the job waits; None where nothing keeps the next cycle from starting it.

        First what no time will cure, then what keeps the job itself from being tried, then the job that blocks its
        lane, then what is missing now.
        """
        return never_starts(self.turn, row) or self.gate(row) or self.behind(row) or self.missing(row)[0]

    def gate(self, row: int) -> Closed | CoreWaits | BackOff | None:
        """What keeps the job from being tried, whatever is free."""
        if not self.heeds_quotas:
            return None
        closed = self.admission.closed(row)
        if closed is None and self.state.jobs[row, J_RETURNS]:
            back_off = self.profile.requeue.back_off(self.state, row)
            return back_off if back_off is not None and back_off.until > self.now else None
        return closed

    def behind(self, row: int) -> Behind | None:
        """The head of the job's lane, where it is another one."""
        head = self.scheduler.waiting.head_before(row)
        return Behind(self.state.ids[head]) if head is not None else None

    def missing(self, row: int) -> tuple[Reason | None, Shape]:
        """What the job would lack if it were tried now, and the shape of which that is said.

        A GPU model on which it would fit says more about why the job waits than one that is full, and that more than
        one on which there is no quota.
        """
        shape = self.state.shape_of(row)
        found: list[tuple[Reason, Shape]] = []
        for option in self.admission.options(row, shape) if self.heeds_quotas else [shape]:
            reason = (self.admission.shortage(row, option) if self.heeds_quotas else None) or self.room(row, option)
            if reason is None:
                return None, option
            found.append((reason, option))
        return min(found, key=lambda pair: (isinstance(pair[0], OverQuota), isinstance(pair[0], NoFit)))

    def room(self, row: int, shape: Shape) -> NoFit | Reserved | None:
        """Why there is no place for the job now; None where there is one that no promise needs."""
        with self.trial(), self.without_promise_of(row):
            beside = self.turn.place(row, shape)
            if isinstance(beside, np.ndarray):
                return None
            free = self.placer.place(shape, row) if self.turn.forecast is not None else beside
            return free if isinstance(free, NoFit) else self._reserved(row, free)

    def _reserved(self, row: int, place: Allocation) -> Reserved:
        """The first promise that needs something of a place that the job could have now; else the first of all."""
        assert self.turn.forecast is not None
        until = min(self.now + self.turn.forecast.estimates.duration(self.state, row), FOREVER)
        nodes = set(place[:, NODE].tolist())

        def rank(entry: tuple[int, Reservation]) -> tuple[bool, bool, int, int]:
            other, promise = entry
            elsewhere = nodes.isdisjoint(promise.allocation[:, NODE].tolist())
            return promise.start >= until, elsewhere, promise.start, other

        first, promise = min(((r, p) for r, p in self.state.reserved.items() if r != row), key=rank)
        return Reserved(self.state.ids[first], promise.start)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is tried inside is rolled back."""
        mark = self.placer.trial.checkpoint()
        try:
            yield
        finally:
            self.placer.trial.rollback(mark)

    @contextmanager
    def without_promise_of(self, row: int) -> Iterator[None]:
        """The job does not stand in its own way."""
        timeline = self.turn.forecast.timeline if self.turn.forecast is not None else None
        if timeline is None or row not in timeline:
            yield
            return
        held = timeline.allocation_of(row), timeline.start_of(row), timeline.expected_end(row)
        timeline.remove(row)
        try:
            yield
        finally:
            timeline.add(row, *held)
