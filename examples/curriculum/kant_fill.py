"""A discipline for work that fills gaps: other jobs are decided as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np

from kant.cluster.columns import J_PRIORITY
from kant.cluster.shapes import Shape
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.pending import Head, PendingQueue, Share
from kant.queueing.preemption.policy import Preemption


class Fill(Backfill, frozen=True, tag="fill"):
    """Backfill for jobs from priority zero on; those of a negative priority fill what is left and cost others nothing.

    First all fillers leave on paper, and the others are decided without them. Then each filler whose place is still
    free stays, the others are stopped at once, and waiting fillers take what is left. They preempt nobody.
    """

    source: ClassVar[str] = "an example of this documentation"

    def run(self, cycle: CyclePlan) -> None:
        jobs, pending, trial = cycle.state.jobs, cycle.pending, cycle.placer.trial
        waiting = np.fromiter(cycle.state.pending, np.int64, len(cycle.state.pending))
        fills = [row for row in cycle.going_on().tolist() if jobs.item(row, J_PRIORITY) < 0]
        held = {row: cycle.state.running[row] for row in fills}
        if (jobs[waiting, J_PRIORITY] >= 0).any():
            first = len(cycle.plan.decisions)
            for row, allocation in held.items():
                trial.evict(allocation)
                cycle.stopped[row] = None
            cycle.pending = cast(PendingQueue, Others(pending, jobs))
            super().run(cycle)
            if not isinstance(cycle.evictor, Preemption) or cycle.evictor.move_victims:
                cycle.relocate_victims()
            cycle.victims = []
            cycle.pending, decided = pending, cycle.plan.decisions[first:]
            cycle.entitlements = None
            del cycle.plan.decisions[first:]
            for row, allocation in held.items():
                del cycle.stopped[row]
                if trial.is_free(allocation):
                    trial.restore(allocation)
                else:
                    cycle.preempt(row, why="fills")
            cycle.plan.decisions += decided
        evictor, cycle.evictor = cycle.evictor, None
        for row, shape, bucket in pending.walk():
            if jobs.item(row, J_PRIORITY) >= 0:
                pending.step_aside(bucket)
                continue
            result = cycle.nominate(row, shape)
            if isinstance(result, np.ndarray):
                cycle.start(row, result)
                pending.took(bucket)
            else:
                cycle.hold(row, result)
                pending.sleep(bucket, shape, cycle.failed)
        cycle.evictor = evictor


class Others:
    """The pending queue without jobs of negative priority."""

    def __init__(self, pending: PendingQueue, jobs: Any) -> None:
        self._pending, self._jobs = pending, jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)

    def walk(self, share: Share | None = None) -> Iterator[tuple[int, Shape, int]]:
        for row, shape, bucket in self._pending.walk(share):
            if self._jobs.item(row, J_PRIORITY) < 0:
                self._pending.step_aside(bucket)
            else:
                yield row, shape, bucket

    def heads(self, *of: Any, **by: Any) -> list[Head]:
        return [head for head in self._pending.heads(*of, **by) if self._jobs.item(head[0], J_PRIORITY) >= 0]
