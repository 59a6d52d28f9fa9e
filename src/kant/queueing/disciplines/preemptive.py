"""Preemptive: a job evicts running jobs behind it in the order, if that is proven to free enough capacity."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from kant.cluster.columns import J_PREEMPTIBLE, J_SHAPE, J_STARTED, J_STATUS, Table
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.status import JobStatus
from kant.model.taxonomy import Tags, tagged
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline


class Preemptive(Discipline, frozen=True, tag="preemptive"):
    """A waiting job that does not fit preempts running jobs behind it in the order, the last first.

    No job is stopped unless a trial placement shows that the waiting job then fits. Victims that need not leave run on,
    and victims that fit elsewhere move there. A job that has run for less than `min_run_s` since it last started is not
    preempted.
    """

    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 60

    source: ClassVar[str] = "this project; trial before eviction as in KAI-Scheduler's scenarios"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="priority", knowledge="none", preemption="evict")
    buckets: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, cycle: CyclePlan) -> None:
        state = cycle.state
        if not state.pending:
            return
        cycle.demote()
        rows = np.concatenate([cycle.going_on(), np.sort(cycle.waiting_rows())])  # on ties, running jobs come first
        ranked = rows[cycle.ranking(rows)]
        preemptible = self._preemptible(cycle, ranked)
        todo = np.flatnonzero(state.jobs[ranked, J_STATUS] == JobStatus.PENDING).tolist()  # indices in `ranked`
        shapes = state.jobs[ranked, J_SHAPE].tolist()
        stopped: set[int] = set()
        starts: dict[int, Allocation] = {}
        failed: set[int] = set()
        for place in todo:  # grows by the jobs that are stopped meanwhile: they are further back
            if shapes[place] in failed and not state.books:  # with bookings the job's limit counts, not only its shape
                continue
            row, shape = int(ranked[place]), state.shapes.shapes[shapes[place]]
            result = cycle.place(row, shape)
            waits = row in state.pending
            if isinstance(result, NoFit) and waits:
                behind = [int(ranked[p]) for p in preemptible if p > place and int(ranked[p]) not in stopped]
                if state.books:
                    behind = [who for who in behind if cycle.booked.gives_room(row, state.running[who])]
                    with cycle.beside_bookings(row):
                        freed = self._free_capacity(cycle, row, behind) if behind and shape.ask.preempts else None
                else:
                    freed = self._free_capacity(cycle, row, behind) if behind and shape.ask.preempts else None
                if freed is not None:
                    victims, result = freed
                    stopped.update(victims)
                    for p in np.flatnonzero(np.isin(ranked, victims)).tolist():
                        insort(todo, p)
            if not isinstance(result, NoFit):
                if not waits and np.array_equal(result, state.running[row]):
                    stopped.remove(row)  # the job can stay after all
                else:
                    starts[row] = result
                continue
            failed.add(shape.index)
            if waits:
                cycle.hold(row, result)
        for row in sorted(stopped):
            cycle.preempt(row, moved=row in starts)
        for row, allocation in starts.items():
            cycle.start(row, allocation)
        cycle.remember(ranked, (set(state.running) - stopped) | set(starts))
        if failed:
            cycle.wake_at(self._next_preemptible(cycle, ranked))

    def _preemptible(self, cycle: CyclePlan, ranked: Table) -> list[int]:
        """Return the indices in `ranked` of the preemptible jobs past their minimum run time, the last first."""
        jobs = cycle.state.jobs
        runs = (jobs[ranked, J_STATUS] == JobStatus.RUNNING) & (jobs[ranked, J_PREEMPTIBLE] == 1)
        reached = jobs[ranked, J_STARTED] <= cycle.now - self.min_run_s * SECOND
        places: list[int] = np.flatnonzero(runs & reached)[::-1].tolist()
        return places

    def _next_preemptible(self, cycle: CyclePlan, ranked: Table) -> int:
        """Return when the next running job reaches its minimum run time, µs; -1 if none does."""
        jobs = cycle.state.jobs
        runs = (jobs[ranked, J_STATUS] == JobStatus.RUNNING) & (jobs[ranked, J_PREEMPTIBLE] == 1)
        times = jobs[ranked, J_STARTED][runs] + self.min_run_s * SECOND
        times = times[times > cycle.now]
        return int(times.min()) if len(times) else -1

    def _free_capacity(self, cycle: CyclePlan, row: int, behind: list[int]) -> tuple[list[int], Allocation] | None:
        """Evict jobs of `behind` on the trial, in that order, until `row` fits; then restore those that may stay.

        Returns the rows that must stop, and the placement that proves it; None if evicting all does not suffice.
        """
        placer, trial, running = cycle.placer, cycle.placer.trial, cycle.state.running
        shape = cycle.state.shape_of(row)

        def fits_without(count: int) -> bool:
            mark = trial.checkpoint()
            for who in behind[:count]:
                trial.evict(running[who])
            fits = placer.missing(shape, row) == 0
            trial.rollback(mark)
            return fits

        count = 1
        while count < len(behind) and not fits_without(count):
            count *= 2
        if count >= len(behind) and not fits_without(len(behind)):
            return None
        enough = bisect_left(range(min(count, len(behind))), True, count // 2 + 1, key=fits_without)
        for who in behind[:enough]:
            trial.evict(running[who])
        placed = cycle.place(row, shape)
        assert not isinstance(placed, NoFit), "the same nodes gave another answer"
        needed = behind[:enough]
        for who in reversed(behind[:enough]):
            if trial.is_free(running[who]):
                trial.restore(running[who])
                if trial.keeps_apart(shape, placed):
                    needed.remove(who)
                else:
                    trial.evict(running[who])
        return needed, placed
