"""Preemptive: whoever is earlier in the order runs, if stopping later ones is proven to make room."""

from __future__ import annotations

from bisect import insort
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from kant.cluster.columns import J_PREEMPTIBLE, J_SHAPE, J_STARTED, J_STATUS, Table
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


class Preemptive(Discipline, frozen=True, tag="preemptive"):
    """A waiting job that does not fit takes the place of running jobs behind it in the order, the last first.

    Nothing is stopped unless the trial shows that the job then fits; victims that turn out not to be needed keep
    their place, and victims that fit elsewhere move there. A job that has run for less than `min_run_s` since it
    last started is left alone.
    """

    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 60

    source: ClassVar[str] = "ours; trial before eviction as in KAI-Scheduler's scenarios"
    lanes: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, turn: Turn) -> None:
        state = turn.state
        if not state.pending:
            return
        turn.demote()
        rows = np.concatenate([turn.going_on(), np.sort(turn.pending())])  # on ties, who runs goes on
        ranked = rows[turn.ranking(rows)]
        loose = self._loose(turn, ranked)
        todo = np.flatnonzero(state.jobs[ranked, J_STATUS] == JobStatus.PENDING).tolist()  # places in `ranked`
        shapes = state.jobs[ranked, J_SHAPE].tolist()
        stopped: set[int] = set()
        starts: dict[int, Allocation] = {}
        failed: set[int] = set()
        for place in todo:  # grows by the jobs that are stopped on the way: they lie further back
            if shapes[place] in failed:
                continue
            row, shape = int(ranked[place]), state.shapes.shapes[shapes[place]]
            result = turn.place(row, shape)
            waits = row in state.pending
            if isinstance(result, NoFit) and waits:
                behind = [int(ranked[p]) for p in loose if p > place and int(ranked[p]) not in stopped]
                victims, made = self._make_room(turn, row, behind) if behind and shape.ask.preempts else ([], None)
                if made is not None:
                    result = made
                    stopped.update(victims)
                    for p in np.flatnonzero(np.isin(ranked, victims)).tolist():
                        insort(todo, p)
            if not isinstance(result, NoFit):
                if not waits and np.array_equal(result, state.running[row]):
                    stopped.remove(row)  # it can stay after all
                else:
                    starts[row] = result
                continue
            failed.add(shape.index)
            if waits:
                turn.hold(row, result)
        for row in sorted(stopped):
            turn.preempt(row, moved=row in starts)
        for row, allocation in starts.items():
            turn.start(row, allocation)
        turn.remember(ranked, (set(state.running) - stopped) | set(starts))
        if failed:
            turn.review(self._next_loose(turn, ranked))

    def _loose(self, turn: Turn, ranked: Table) -> list[int]:
        """Places in `ranked` of the running jobs that may be stopped, the last first."""
        jobs = turn.state.jobs
        runs = (jobs[ranked, J_STATUS] == JobStatus.RUNNING) & (jobs[ranked, J_PREEMPTIBLE] == 1)
        old_enough = jobs[ranked, J_STARTED] <= turn.now - self.min_run_s * SECOND
        places: list[int] = np.flatnonzero(runs & old_enough)[::-1].tolist()
        return places

    def _next_loose(self, turn: Turn, ranked: Table) -> int:
        """When the next running job has run for long enough to be stopped; -1 where none is coming to it."""
        jobs = turn.state.jobs
        runs = (jobs[ranked, J_STATUS] == JobStatus.RUNNING) & (jobs[ranked, J_PREEMPTIBLE] == 1)
        times = jobs[ranked, J_STARTED][runs] + self.min_run_s * SECOND
        times = times[times > turn.now]
        return int(times.min()) if len(times) else -1

    def _make_room(self, turn: Turn, row: int, behind: list[int]) -> tuple[list[int], Allocation | None]:
        """Stop jobs of `behind`, in that order, until `row` fits; then let those go on that were not in the way.

        Returns who has to stop and the placement that this proves, or nobody and None.
        """
        trial, held, shape = turn.placer.trial, turn.state.running, turn.state.shape_of(row)
        mark, tried = trial.checkpoint(), []
        for victim in behind:
            trial.evict(held[victim])
            tried.append(victim)
            result = turn.place(row, shape)
            if isinstance(result, NoFit):
                continue
            needed = []
            for spared in reversed(tried):
                if trial.is_free(held[spared]):
                    trial.restore(held[spared])
                    if trial.keeps_apart(shape, result):
                        continue
                    trial.evict(held[spared])
                needed.append(spared)
            return needed, result
        trial.rollback(mark)
        return [], None
