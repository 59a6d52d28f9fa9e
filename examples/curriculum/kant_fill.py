"""A discipline for work that fills gaps: other jobs are decided as if it were not there."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np

from kant.cluster.columns import J_PRIORITY, Table
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.pending import Head, PendingQueue
from kant.queueing.preemption.policy import Preemption
from kant.queueing.priority import PriorityHolds
from kant.queueing.tries import Tries, try_in_order


class Others:
    """The pending queue without the first jobs that have a negative priority."""

    def __init__(self, whole: PendingQueue, jobs: Table) -> None:
        self.whole, self._jobs = whole, jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def heads(self, *of: Any, **by: Any) -> list[Head]:
        return [head for head in self.whole.heads(*of, **by) if self._jobs.item(head[0], J_PRIORITY) >= 0]


class FillersOnly(Tries):
    """Tries the jobs of a negative priority. The others stay awake and are tried in the next cycle."""

    fills: ClassVar[bool] = True

    def next_job(self) -> tuple[int, int, Any]:
        entry, row, shape = super().next_job()
        while entry and (self.cycle.state.jobs.item(row, J_PRIORITY) < 0) != self.fills:
            self.skip()
            entry, row, shape = super().next_job()
        return entry, row, shape


class OthersOnly(FillersOnly):
    """Tries the jobs from priority zero on."""

    fills = False

    def __init__(self, cycle: CyclePlan, holds: PriorityHolds | None = None) -> None:
        super().__init__(cycle, holds)
        self.pending = cast(Others, cycle.pending).whole


class Fill(Backfill, frozen=True, tag="fill"):
    """Backfill for jobs from priority zero on; those of a negative priority fill what is left and cost others nothing.

    First all fillers leave on paper, and the others are decided without them. Then each filler whose place is still
    free stays, the others are stopped at once, and waiting fillers take what is left. They preempt nobody.
    """

    source: ClassVar[str] = "an example of this documentation"
    tries: ClassVar[type[Tries]] = OthersOnly

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
        try_in_order(cycle, tries=FillersOnly)
        cycle.evictor = evictor
