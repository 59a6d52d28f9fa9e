"""A Turn: what a discipline may look at and do in one cycle."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kant.cluster.columns import J_LEVEL, J_PRIORITY, J_RANK, Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial
from kant.model.decision import Demote, Hold, NeverFits, NoFit, Plan, Preempt, Reason, Reject, Reorder, Start
from kant.model.placement import Allocation
from kant.queueing.order import Order
from kant.queueing.waiting import Waiting


class Placer(Protocol):
    """Where something fits. Placements stay taken on `trial` until it is rolled back."""

    trial: Trial

    def place(self, shape: Shape, salt: int = 0) -> Allocation | NoFit: ...

    def never_fits(self, shape: Shape) -> NeverFits | None: ...


class Turn:
    """One cycle's state, order, queue and placer, and the plan under way. Only the plan is written."""

    def __init__(self, snapshot: Snapshot, order: Order, waiting: Waiting, placer: Placer) -> None:
        self.state = snapshot.state
        self.order = order
        self.waiting = waiting
        self.placer = placer
        self.now = snapshot.now
        self.previous = snapshot.previous
        self.plan = Plan(snapshot.now, [])

    def place(self, row: int, shape: Shape) -> Allocation | NoFit:
        """Place a job's whole gang on the trial."""
        return self.placer.place(shape, row)

    def start(self, row: int, allocation: Allocation) -> None:
        self.plan.decisions.append(Start(self.state.ids[row], allocation))

    def hold(self, row: int, reason: Reason) -> None:
        """Say that a job was tried and waits on: once for each time that it waits, not in every cycle."""
        if row in self.waiting.held:
            return
        self.waiting.held.add(row)
        self.plan.decisions.append(Hold(self.state.ids[row], reason))

    def reject(self, row: int, reason: Reason) -> None:
        self.plan.decisions.append(Reject(self.state.ids[row], reason))

    def preempt(self, row: int, moved: bool = False) -> None:
        self.plan.decisions.append(Preempt(self.state.ids[row], moved))

    def demote(self) -> None:
        """Say which running jobs the order moves to a lower level."""
        for row, level in self.order.demotions(self.state.jobs, self.running(), self.now):
            self.plan.decisions.append(Demote(self.state.ids[row], level))

    def running(self) -> Table:
        """Rows of the running jobs, in the order in which they started."""
        return np.fromiter(self.state.running, dtype=np.int64, count=len(self.state.running))

    def pending(self) -> Table:
        """Rows of the waiting jobs, in the order in which they came to wait."""
        rows = self.staying(self.state.pending)
        return np.fromiter(rows, dtype=np.int64, count=len(rows))

    def staying(self, rows: dict[int, None]) -> dict[int, None]:
        """`rows` without the jobs that this plan has rejected."""
        leaving = self.waiting.leaving
        return {row: None for row in rows if row not in leaving} if leaving else rows

    def ranking(self, rows: Table) -> Table:
        """Indices that put `rows` in order, best first: priority, then the order's key, then as they are given."""
        jobs = self.state.jobs
        keys = self.order.keys(jobs, rows, self.now)
        priority = jobs[rows, J_PRIORITY]
        return np.lexsort([keys, -priority]) if priority.any() else np.argsort(keys, kind="stable")

    def remember(self, ranked: Table, runs: set[int]) -> None:
        """Keep the order of this cycle for the next one and say when it changes by itself, if the order has a memory.

        `runs` are the rows that run after this plan; within a level they come before those that wait.
        """
        if not self.order.remembers:
            return
        jobs = self.state.jobs
        level = jobs[ranked, J_LEVEL]
        for row, new in self.order.demotions(jobs, self.running(), self.now):
            level[ranked == row] = new
        waits = np.array([row not in runs for row in ranked.tolist()], dtype=np.bool_)
        order = np.lexsort([np.arange(len(ranked)), waits, level])
        same_level = np.diff(level[order]) == 0
        if np.any(same_level & (np.diff(jobs[ranked[order], J_RANK]) < 0)):
            self.plan.decisions.append(Reorder(tuple(self.state.ids[row] for row in ranked[order].tolist())))
        self.review(self.order.review_at(jobs, np.sort(ranked[~waits]), self.now))

    def review(self, time: int) -> None:
        """Ask for a cycle at `time` (-1: none) although nothing may have happened by then."""
        if time >= 0:
            self.plan.review_at = time if self.plan.review_at < 0 else min(self.plan.review_at, time)
