"""The input of evictions in compiled instants, kept between the calls (`evict.py`, `advancer.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.compiled import is_ready
from kant.placement.counted_search import random_numbers
from kant.queueing.orders.fifo import Fifo
from kant.queueing.preemption.policy import Preemption
from kant.queueing.waiting import as_integers
from kant.scheduler.profile import Profile
from kant.sim import happened as h
from kant.sim.evict import AGAIN_WIDTH, BUCKET, KEY, KNOWN, Evictions
from kant.sim.speed import Steady

if TYPE_CHECKING:
    from kant.sim.run import Run

PATIENCE = 2000
"""Number of calls of a run until code for evictions is compiled. Compilation takes some 20 CPU-seconds; each call that
stops for an eviction costs about a millisecond more.
"""


def may_evict(profile: Profile) -> bool:
    """Return whether jobs of a profile may evict others."""
    return any(isinstance(by, Preemption) for by in profile.evictors)


class EvictionColumns:
    """The domains of counted shapes, and the bucket in which each job waits again; makes the `Evictions` of a call."""

    def __init__(self, run: Run) -> None:
        assert isinstance(run.execution.speed, Steady)
        self.run, self.state, self._speed = run, run.state, run.execution.speed
        self._costs: Table = np.array(self._speed.cost.steps, dtype=np.int64).reshape(-1, 2)
        self._again: Table = np.zeros((0, AGAIN_WIDTH), dtype=np.int64)
        self._numbered = -1
        self._calls, self._pay = 0, False
        self.forget_shapes()

    def forget_shapes(self) -> None:
        """Forget the domains; their rows are numbered anew."""
        self._rows: dict[int, int] = {}
        self._domains: Table = np.zeros((0, len(self.state.table)), dtype=np.int64)

    def shapes_of_running(self) -> list[int]:
        """Return the shapes of the running jobs."""
        running = np.fromiter(self.state.running, np.int64, len(self.state.running))
        shapes: list[int] = np.unique(self.state.jobs[running, c.J_SHAPE]).tolist()
        return shapes

    def domains_of(self, shape: Shape) -> int:
        """Return the row of the domains of a shape; -1 if no count tells whether its jobs fit."""
        domains = None if shape.ask.node_sets else self.run.scheduler.placer.counted_domains(shape)
        if domains is None:
            return -1
        level = shape.level if shape.required else -1
        if level not in self._rows:
            self._rows[level] = len(self._domains)
            self._domains = np.concatenate([self._domains, domains[None]])
        return self._rows[level]

    def pay(self, advance: Callable[..., Table], *told: object) -> bool:
        """Return whether the compiled call is to evict jobs: its code is compiled already, or compiling it pays now."""
        self._pay = self._pay or self._calls > PATIENCE or is_ready(advance, *told)
        return self._pay

    def of_call(self, rows: int, work: Table) -> Evictions | None:
        """Return the input of a call with up to `rows` jobs, and write the `work` of running jobs; None if Python
        decides evictions.
        """
        self._calls += 1
        if not self._pay and 1 < self._calls <= PATIENCE:
            return None
        run, state, pending = self.run, self.state, self.run.scheduler.pending
        by, order = run.profile.evictors[pending.mixed], run.profile.order
        if not isinstance(by, Preemption) or state.prices or type(order) is not Fifo:
            return None
        if rows > len(self._again):
            self._again = c.longer(self._again, rows)
        if self._numbered != pending.numbered:
            self._numbered, self._again[:, BUCKET] = pending.numbered, 0
        live = np.fromiter(state.live, np.int64, len(state.live))
        new = live[self._again[live, BUCKET] == 0]
        self._again[new, KEY] = as_integers(order.keys(state.jobs, new, state.now))
        columns = [c.J_QUEUE, c.J_SHAPE, c.J_PRIORITY, c.J_PREEMPTIBLE]
        for row, (queue, shape, priority, preemptible) in zip(
            new.tolist(), state.jobs[new][:, columns].tolist(), strict=True
        ):
            self._again[row, [BUCKET, KNOWN]] = pending.numbers(queue, shape, -1, priority, -1, preemptible, -1)
        running = np.fromiter(state.running, np.int64, len(state.running))
        work[running] = self._speed.left_of_all(state.running)
        most = len(live) + rows - len(state.ids)  # jobs that may run at once
        saves = -1 if self._speed.checkpoint is None else self._speed.checkpoint
        moves = run.profile.preemption is None or run.profile.preemption.move_victims
        return Evictions(
            by.exact, by.trials, moves, self._domains, random_numbers(most), saves, self._costs, self._again
        )

    def follow(self, evicted: Table, work: Table) -> None:
        """Follow the evictions of a call: what they cost, the work that is left, and which jobs stopped.

        Jobs that ended in the call have been followed already.
        """
        state = self.state
        for row, cost in evicted[:, [h.H_ROW, h.H_PIECE]].tolist():
            self.run.recorder.lost(row, cost)
            if state.running.pop(row, None) is not None:
                state.quota_usage.stopped(row, state.now, refunds=False)
        for row in np.unique(evicted[:, h.H_ROW]).tolist():
            if state.jobs.item(row, c.J_STATUS) in (to.PENDING, to.RUNNING):
                self._speed.evicted(row, work.item(row))
