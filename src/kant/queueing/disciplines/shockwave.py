"""Shockwave: plans in rounds, so that all jobs progress, the longest has little left, and jobs end without delay."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.status import JobStatus
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER, SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.remaining import remaining
from kant.queueing.window import Window, WindowJob, fill, late_weight, lay_out


class Shockwave(Discipline, frozen=True, tag="shockwave"):
    """Every `round_s` seconds a window of rounds is planned; jobs outside its first round stop for the jobs in it. A
    plan maximises the product of all progress and shortens the remaining time of the longest job. A job that takes
    longer than with an equal share of the cluster weighs more, by the ratio to the power `lateness`. With `by_queue`
    each queue has the same weight, or its own from `weights`, and its jobs share it; otherwise jobs have equal weights.
    No job is stopped for one that finds no place. Between rounds every job that fits starts, in the profile's order.
    Jobs without an estimate are expected to run for as long again as they have run.
    """

    round_s: Annotated[int, Meta(ge=1, le=10**6)] = 120
    window: Annotated[int, Meta(ge=1, le=1000)] = 20
    lateness: Annotated[float, Meta(ge=0, le=100)] = 12.0
    longest: Annotated[float, Meta(ge=0, le=1000)] = 1e-3
    by_queue: bool = False

    source: ClassVar[str] = "Shockwave, P. Zheng et al., NSDI 2023, arXiv 2210.00093; without its solver"
    tags: ClassVar[Tags] = tagged(
        Discipline.tags, objective="fairness makespan", knowledge="estimated", preemption="evict", timing="round"
    )
    buckets: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, cycle: CyclePlan) -> None:
        if not cycle.state.pending:
            return
        cycle.demote()
        length = self.round_s * SECOND
        starting, stopped = self._begin_round(cycle) if cycle.now % length == 0 else (set(), [])
        self._fill_up(cycle, starting, stopped)
        cycle.wake_at((cycle.now // length + 1) * length)

    def _begin_round(self, cycle: CyclePlan) -> tuple[set[int], list[int]]:
        """Stop and start jobs so that the first round of a new plan runs. Returns the started and the stopped jobs."""
        state, trial = cycle.state, cycle.placer.trial
        going_on = np.sort(cycle.going_on())
        may_stop = state.jobs[going_on, c.J_PREEMPTIBLE] == 1
        rows = np.concatenate([going_on[may_stop], np.sort(cycle.waiting_rows())])
        kept = int(state.jobs[going_on[~may_stop], c.J_MILLI].sum())
        window = self._window(cycle, rows, kept)
        if window is None:
            return set(), []
        running = frozenset(range(int(may_stop.sum())))
        chosen = [int(rows[i]) for i in lay_out(window, fill(window), 1, running)[0]]
        wanted = set(chosen)
        out = [row for row in rows.tolist() if row in state.running and row not in wanted]
        starts: dict[int, Allocation] = {}
        for row in out:
            trial.evict(state.running[row])
        for row in (row for row in chosen if row not in state.running):
            result = cycle.place(row, state.shape_of(row))
            if not isinstance(result, NoFit):
                starts[row] = result
        stopped = []
        for row in out:  # jobs that are not in the way go on
            held = state.running[row]
            if trial.is_free(held) and trial.keeps_apart(state.shape_of(row), held):
                trial.restore(held)
            else:
                cycle.preempt(row)
                stopped.append(row)
        for row, allocation in starts.items():
            cycle.start(row, allocation)
        return set(starts), stopped

    def _fill_up(self, cycle: CyclePlan, starting: set[int], stopped: list[int]) -> None:
        """Start the waiting jobs that fit, in order; record why the others wait. A stopped job that fits moves."""
        state = cycle.state
        waiting = np.array(sorted([*cycle.waiting_rows().tolist(), *stopped]), dtype=np.int64)
        failed: dict[int, NoFit] = {}
        for row in waiting[cycle.ranking(waiting)].tolist():
            if row in starting:
                continue
            shape = state.shape_of(row)
            known = failed.get(shape.index)
            result = cycle.place(row, shape) if known is None else known
            if isinstance(result, NoFit):
                failed[shape.index] = result
                if row in state.pending:
                    cycle.hold(row, result)
            elif row in state.pending:
                cycle.start(row, result)
            else:
                cycle.move(row, result)

    def _window(self, cycle: CyclePlan, rows: Table, kept: int) -> Window | None:
        """Return the window of the next rounds for these jobs. `kept`: milli-GPUs of jobs that may not be stopped."""
        state, length = cycle.state, self.round_s * SECOND
        milli = int(state.pools[:, c.P_CAPACITY].sum()) - kept
        if milli <= 0 or len(rows) == 0:
            return None
        jobs = state.jobs[rows]
        running = jobs[:, c.J_STATUS] == JobStatus.RUNNING
        ran = jobs[:, c.J_ATTAINED] + np.where(running, cycle.now - jobs[:, c.J_SINCE], 0)
        left = remaining(state.jobs, rows, cycle.now)
        left = np.maximum(np.where(left >= FOREVER, np.maximum(ran, length), left), 1)
        weights = self._weights(cycle, jobs[:, c.J_QUEUE])
        age = cycle.now - jobs[:, c.J_SUBMIT]
        entries = []
        for i in range(len(rows)):
            alone, rest = float(ran[i]), float(left[i])
            share = min(1.0, milli / 1000 * weights[i] / len(rows))
            late = (float(age[i]) + rest / share) / ((alone + rest) / share)
            weight = weights[i] * late_weight(late, self.lateness, rest < length)
            progress = min(alone / (alone + rest), 1 - 0.5 * length / (alone + rest + length))
            entries.append(WindowJob(max(int(jobs[i, c.J_MILLI]), 1), weight, progress, rest / length))
        return Window(tuple(entries), milli, self.window, self.longest * self.round_s)

    def _weights(self, cycle: CyclePlan, queues: Table) -> list[float]:
        """Return the weight of each job; the mean is 1."""
        if not self.by_queue:
            return [1.0] * len(queues)
        found, counts = np.unique(queues, return_counts=True)
        shares = cycle.shares
        each = [math.prod(shares.weight(node) for node in shares.path(queue)) for queue in found.tolist()]
        of_job = np.array(each) / counts * (len(queues) / sum(each))
        weights: list[float] = of_job[np.searchsorted(found, queues)].tolist()
        return weights
