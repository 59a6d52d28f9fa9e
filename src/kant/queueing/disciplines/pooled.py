"""Pooled: whoever is first in the order holds the GPUs, counted over the whole pool."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kant.cluster.columns import J_MILLI, P_CAPACITY, Table
from kant.compiled import compiled
from kant.model.decision import NoFit
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


@compiled
def select(milli: Table, budget: int) -> Table:
    """Walk the demands in order and select each that still fits the budget; 1 for selected."""
    chosen = np.zeros(milli.shape[0], dtype=np.int64)
    for i in range(milli.shape[0]):
        if milli[i] <= budget:
            chosen[i] = 1
            budget -= milli[i]
    return chosen


class Pooled(Discipline, frozen=True, tag="pooled"):
    """The order over waiting and running jobs decides who should run, by a count of GPUs that ignores nodes.

    Running jobs that are not selected are preempted; selected waiting jobs are placed, and one that does not fit
    then waits although it was selected. Running jobs are never moved. It may preempt in vain: it is here to
    reproduce published results, and `preemptive` is the discipline to use.
    """

    source: ClassVar[str] = "HeliosArtifact, Hu et al., SC 2021 (SRTF of the simulator)"

    def run(self, turn: Turn) -> None:
        state = turn.state
        if not state.pending:
            return
        pending, running = turn.pending(), turn.running()
        rows = np.concatenate([pending, running])
        place = np.arange(len(rows))  # waiting before running, each in the order in which they entered
        ranked = rows[np.lexsort([place, turn.order.keys(state.jobs, rows, turn.now)])]
        budget = int(state.pools[:, P_CAPACITY].sum())
        chosen = set(ranked[select(state.jobs[ranked, J_MILLI], budget).astype(np.bool_)].tolist())
        for row in running.tolist():
            if row not in chosen:
                turn.preempt(row)
                turn.placer.trial.evict(state.running[row])
        failed: set[int] = set()
        for row in ranked.tolist():
            if row in chosen and row in state.pending:
                shape = state.shape_of(row)
                if shape.index not in failed:
                    result = turn.place(row, shape)
                    if isinstance(result, NoFit):
                        failed.add(shape.index)
                    else:
                        turn.start(row, result)
