"""Repack: every job is placed anew in every cycle, as if moving cost nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


class Repack(Discipline, frozen=True, tag="repack"):
    """Empty the cluster, then place waiting and running jobs in order; who does not fit is passed over.

    With `keep`, a running job first tries to stay where it is. Moving is free here: this is for reproducing
    published simulators, and `preemptive` is the discipline to use.
    """

    keep: bool = False

    source: ClassVar[str] = "Muri artifact, Zhao et al., SIGCOMM 2022; Tiresias simulator, NSDI 2019"
    lanes: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, turn: Turn) -> None:
        state, trial = turn.state, turn.placer.trial
        turn.demote()
        rows = np.sort(np.concatenate([turn.going_on(), turn.pending()]))  # on ties in order of arrival
        ranked = rows[turn.ranking(rows)]
        for row in turn.going_on().tolist():
            trial.evict(state.running[row])
        failed: set[int] = set()
        starts: list[tuple[int, Allocation]] = []
        runs: set[int] = set()
        for row in ranked.tolist():
            held = state.running.get(row)
            if held is not None and self.keep and trial.is_free(held):
                trial.restore(held)
                runs.add(row)
                continue
            shape = state.shape_of(row)
            result = None if shape.index in failed else turn.place(row, shape)
            if result is None or isinstance(result, NoFit):
                failed.add(shape.index)
                if held is not None:
                    turn.preempt(row)
                continue
            runs.add(row)
            if held is None:
                starts.append((row, result))
            elif not np.array_equal(held, result):
                turn.preempt(row, moved=True)
                starts.append((row, result))
        for row, allocation in starts:
            turn.start(row, allocation)
        turn.remember(ranked, runs)
