"""Pooled: whoever is first in the order holds the GPUs, counted over the whole pool."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_MILLI, J_SHAPE, P_CAPACITY, Table
from kant.compiled import compiled
from kant.model.decision import NoFit
from kant.queueing.discipline import Discipline
from kant.queueing.turn import Turn


@compiled
def select(milli: Table, pools: Table, budgets: Table) -> NDArray[np.bool_]:
    """Walk the demands in order and select each that its pools can still pay; those of lower index pay first."""
    chosen = np.zeros(milli.shape[0], dtype=np.bool_)
    for i in range(milli.shape[0]):
        left = milli[i]
        for p in range(budgets.shape[0]):
            if (pools[i] >> p) & 1:
                left -= budgets[p]
        if left <= 0:
            chosen[i] = True
            left = milli[i]
            for p in range(budgets.shape[0]):
                if (pools[i] >> p) & 1:
                    paid = min(left, budgets[p])
                    budgets[p] -= paid
                    left -= paid
    return chosen


@compiled
def contested(pools: Table, waiting: Table, stirred: int) -> int:
    """The pools, as bits, whose plan may change: somebody waits for them and something happened there.

    With them go those that are tied to them by a shape that may use both. Where nothing happened since the last
    cycle the plan stands: what waits keeps its key, and what runs only comes nearer to its end.
    """
    bits = 0
    for shape in waiting:
        bits |= pools[shape] if pools[shape] & stirred else 0
    before = -1
    while before != bits:
        before = bits
        for shape in range(pools.shape[0]):
            if pools[shape] & bits:
                bits |= pools[shape]
    return bits


class Pooled(Discipline, frozen=True, tag="pooled"):
    """The order over waiting and running jobs decides who should run, by a count of GPUs that ignores nodes.

    Running jobs that are not selected are preempted; selected waiting jobs are placed, and one that does not fit
    then waits although it was selected. Running jobs are never moved. It may preempt in vain: it is here to
    reproduce published results, and `preemptive` is the discipline to use.
    """

    source: ClassVar[str] = "HeliosArtifact, Hu et al., SC 2021 (SRTF of the simulator)"
    lanes: ClassVar[bool] = False

    def run(self, turn: Turn) -> None:
        state = turn.state
        if not state.pending:
            return
        pending, pools = turn.pending(), state.shapes.pool_bits()
        stirred = sum(1 << pool for pool, time in enumerate(state.stirred) if time >= turn.previous)
        bits = contested(pools, state.jobs[pending, J_SHAPE], stirred)
        if bits == 0:
            return
        pending = pending[pools[state.jobs[pending, J_SHAPE]] & bits != 0]
        running = turn.running()
        running = running[pools[state.jobs[running, J_SHAPE]] & bits != 0]
        rows = np.concatenate([pending, running])  # on ties waiting before running, each as they entered
        order = turn.ranking(rows)
        ranked = rows[order]
        chosen = select(
            state.jobs[ranked, J_MILLI], pools[state.jobs[ranked, J_SHAPE]], state.pools[:, P_CAPACITY].copy()
        )
        waits = order < len(pending)
        for row in rows[np.sort(order[~chosen & ~waits])].tolist():
            turn.preempt(row)
            turn.placer.trial.evict(state.running[row])
        failed: set[int] = set()
        for row in ranked[chosen & waits].tolist():
            shape = state.shape_of(row)
            if shape.index in failed:
                continue
            result = turn.place(row, shape)
            if isinstance(result, NoFit):
                failed.add(shape.index)
            else:
                turn.start(row, result)
