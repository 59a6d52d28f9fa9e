"""Preemptive: whoever is earlier in the order runs, if stopping later ones is proven to make room."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kant.cluster.columns import J_SINCE
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.units import SECOND
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


class Preemptive(Discipline, frozen=True, tag="preemptive"):
    """A waiting job that does not fit takes the place of running jobs behind it in the order, the last first.

    Nothing is stopped unless the trial shows that the job then fits; victims that turn out not to be needed keep
    their place, and victims that fit elsewhere move there. A job that has run for less than `min_run_s` since it
    last started is left alone.
    """

    min_run_s: int = 60

    source: ClassVar[str] = "ours; trial before eviction as in KAI-Scheduler's scenarios"

    def run(self, turn: Turn) -> None:
        turn.demote()
        state, trial = turn.state, turn.placer.trial
        if not state.pending:
            return
        running, pending = turn.running(), turn.pending()
        rows = np.concatenate([running, pending])
        ranked = turn.ranked(rows, then=np.repeat([0, 1], [len(running), len(pending)])).tolist()
        place = {row: i for i, row in enumerate(ranked)}
        old_enough = turn.now - self.min_run_s * SECOND
        loose = [
            row
            for row in reversed(ranked)
            if row in state.running and state.jobs[row, J_SINCE] <= old_enough and state.live[row].preemptible
        ]
        stopped: set[int] = set()
        starts: dict[int, Allocation] = {}
        failed: set[int] = set()
        for row in ranked:
            if row in state.running and row not in stopped:
                continue
            shape = state.shape_of(row)
            if shape.index in failed:
                continue
            result = turn.place(row, shape)
            if isinstance(result, NoFit) and row in state.pending:
                behind = [victim for victim in loose if victim not in stopped and place[victim] > place[row]]
                made = self._make_room(turn, row, behind, stopped)
                if made is not None:
                    starts[row] = made
                    continue
            if isinstance(result, NoFit):
                failed.add(shape.index)
                if row in state.pending:
                    turn.hold(row, result)
            elif row in stopped and np.array_equal(result, state.running[row]):
                stopped.remove(row)  # it can stay after all
            else:
                starts[row] = result
        for row in sorted(stopped):
            turn.preempt(row, moved=row in starts)
        for row, allocation in starts.items():
            turn.start(row, allocation)
        runs = (set(state.running) - stopped) | set(starts)
        turn.remember(np.array(ranked, dtype=np.int64), runs)
        if len(runs) < len(ranked):
            turn.plan.review_at = turn.order.review_at(state.jobs, np.array(sorted(runs), dtype=np.int64), turn.now)

    def _make_room(self, turn: Turn, row: int, behind: list[int], stopped: set[int]) -> Allocation | None:
        """Stop jobs of `behind`, in that order, until `row` fits; then let those go on that were not in the way."""
        trial, held, shape = turn.placer.trial, turn.state.running, turn.state.shape_of(row)
        mark, tried = trial.checkpoint(), []
        for victim in behind:
            trial.evict(held[victim])
            tried.append(victim)
            result = turn.place(row, shape)
            if isinstance(result, NoFit):
                continue
            for spared in reversed(tried):
                if trial.is_free(held[spared]):
                    trial.restore(held[spared])
                else:
                    stopped.add(spared)
            return result
        trial.rollback(mark)
        return None
