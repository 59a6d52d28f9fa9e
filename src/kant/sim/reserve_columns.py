"""The calendar and the sorted waiting jobs as tables for compiled instants (`reserve.py`), and the update of Python's
data after a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.placement import Reservation
from kant.model.units import FOREVER
from kant.placement.calendar.book import H_END
from kant.placement.calendar.commitments import COMMITMENT_WIDTH
from kant.placement.group_kernel import Domains, Scores
from kant.queueing.disciplines.conservative import Conservative
from kant.queueing.disciplines.easy import Easy
from kant.queueing.waiting import as_integers
from kant.sim import happened as h
from kant.sim.ends import NOT_RUNNING
from kant.sim.reservations import FREED, LINE_WIDTH, MARKS, OPENED, ROUND, TIGHTENED, Reservations

if TYPE_CHECKING:
    from kant.scheduler.profile import Profile
    from kant.sim.run import Run

NO_STORE: Table = np.zeros((0, COMMITMENT_WIDTH), dtype=np.int64)


def may_reserve(profile: Profile) -> bool:
    """Return whether compiled instants can decide for a discipline with reservations."""
    own, order = profile.discipline, profile.order
    if not isinstance(own, Easy | Conservative) or (isinstance(own, Easy) and own.backfill_order is not None):
        return False
    return not (profile.preemption or profile.estimates.learns or profile.routes or order.moving or order.remembers)


def is_simple(shape: Shape) -> bool:
    """Return whether a job of this shape is a single group that may have a reservation anywhere."""
    return shape.reservable and len(shape.parts) == 1 and not (shape.required or shape.order_dependent)


class Line:
    """The reservations of a run, from call to call."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def tables(
        self, jobs: int, more: int, shapes: Table, groups: Table, scores: tuple[Scores, Scores],
        domains: Domains | None,
    ) -> tuple[Reservations, Table]:  # fmt: skip
        """Return the tables of the compiled call for `jobs` jobs in total, `more` of which may start in addition."""
        run, state, forecast = self.run, self.run.state, self.run.scheduler.forecast
        assert forecast is not None
        calendar, own = run.scheduler.placer.calendar, run.profile.discipline
        assert isinstance(own, Easy | Conservative)
        waiting = np.array(sorted(state.pending), dtype=np.int64)
        priorities = state.jobs[waiting, c.J_PRIORITY] * (-1 if run.profile.order.by_priority else 0)
        keys = as_integers(run.profile.order.keys(state.jobs, waiting, state.now))
        line = np.zeros((more + 1, LINE_WIDTH), dtype=np.int64)
        in_order = np.lexsort([waiting, keys, priorities])
        line[: len(waiting)] = np.column_stack([waiting, priorities, keys])[in_order]
        book, store, none, blocked = calendar.tables(jobs, 4 * (int(state.jobs[waiting, c.J_PODS].sum()) + more))
        running = np.fromiter(state.running, dtype=np.int64, count=len(state.running))
        ends = book.spans[running, H_END]
        heap = np.zeros((len(running) + more + 2, 2), dtype=np.int64)
        known = ends < FOREVER
        by_end = np.lexsort([running[known], ends[known]])
        heap[0, 0] = len(by_end)
        heap[1 : len(by_end) + 1] = np.column_stack([ends[known], running[known]])[by_end]
        expected = np.full(jobs, NOT_RUNNING, dtype=np.int64)
        expected[running[known]] = ends[known]
        marks = np.zeros(MARKS, dtype=np.int64)
        marks[[OPENED, TIGHTENED]] = forecast.opened, forecast.tightened
        marks[FREED] = state.capacity_version + state.node_version
        marks[ROUND] = calendar.no_room.now
        self.marks = marks
        depth = own.heads if isinstance(own, Easy) else own.depth or FOREVER
        return (
            Reservations(
                book, none, blocked, line, heap, expected, marks, depth, own.moves, own.sticky, shapes, groups,
                state.jobs, state.pieces, run.scheduler.snapshot.log, run.scheduler.snapshot.typical_pods, *scores,
                domains, run.scheduler.pending.places,
            ),
            store,
        )  # fmt: skip

    def follow(self, happened: np.ndarray, store: Table) -> None:
        """Copy the reservations of a call into the state and the forecast, which have its starts and ends already."""
        state, forecast, calendar = self.run.state, self.run.scheduler.forecast, self.run.scheduler.placer.calendar
        assert forecast is not None
        decided = happened[(happened[:, h.H_WHAT] == h.STARTED) | (happened[:, h.H_WHAT] == h.RESERVED)]
        for now, what, row, _, at, count, begin, end in decided.tolist():
            if what == h.STARTED:
                state.reserved.pop(row, None)
            elif row in state.pending:
                state.reserved[row] = Reservation(begin, end, state.pieces[at : at + count].copy(), now)
        held = {row: promise.allocation for row, promise in state.reserved.items()}
        calendar.follow(store, state.running | held, state.now)
        calendar.no_room.now = self.marks.item(ROUND)
        forecast.advanced(self.marks.item(OPENED), bool(self.marks[TIGHTENED]))
