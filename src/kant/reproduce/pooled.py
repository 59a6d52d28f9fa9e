"""Pooled: the first jobs in the order hold the GPUs, counted over the whole pool."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import ClassVar

import numpy as np

from kant.cluster.columns import J_MILLI, J_STATUS, P_CAPACITY, Table
from kant.cluster.competing_jobs import PoolGroup
from kant.compiled import compiled
from kant.model.decision import NoFit
from kant.model.taxonomy import Tags, tagged
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline

START, STOP = 1, 2


@compiled
def select(jobs: Table, ranked: Table, pools: Table, budgets: Table) -> Table:
    """Walk the jobs in order and select each for which its pools have enough GPUs left, pools of lower index first.

    Returns START for a waiting job that is selected, STOP for a running one that is not, and 0 for the others.
    """
    moves = np.zeros(ranked.shape[0], dtype=np.int64)
    for i in range(ranked.shape[0]):
        milli = jobs[ranked[i], J_MILLI]
        left = milli
        for p in range(budgets.shape[0]):
            if (pools[i] >> p) & 1:
                left -= budgets[p]
        runs = jobs[ranked[i], J_STATUS] == 1
        if left > 0:
            moves[i] = STOP if runs else 0
            continue
        moves[i] = 0 if runs else START
        left = milli
        for p in range(budgets.shape[0]):
            if (pools[i] >> p) & 1:
                paid = min(left, budgets[p])
                budgets[p] -= paid
                left -= paid
    return moves


def contested(groups: Iterable[PoolGroup], since: int) -> int:
    """Return the pools, as bits, whose plan may change: jobs wait for them and they have changed since `since` (µs).

    Pools tied to them by jobs that may use both are included. If nothing happened since the last cycle, the plan
    remains valid: waiting jobs keep their keys, and running jobs only come closer to their ends.
    """
    last_changed, bits, before = 0, 0, -1
    for group in groups:
        if group.last_changed >= since:
            last_changed |= group.pools
    for group in groups:
        if group.pending and group.pools & last_changed:
            bits |= group.pools
    while before != bits:
        before = bits
        for group in groups:
            if group.pools & bits:
                bits |= group.pools
    return bits


class Pooled(Discipline, frozen=True, tag="pooled"):
    """The order over waiting and running jobs decides which jobs should run, by a count of GPUs that ignores nodes.

    Running jobs that are not selected are preempted. Selected waiting jobs are placed; one that does not fit then waits
    although it was selected. Running jobs never move, and may be preempted needlessly: this discipline is for
    reproducing published results; use `preemptive` otherwise.
    """

    source: ClassVar[str] = "HeliosArtifact, Hu et al., SC 2021 (SRTF of the simulator)"
    tags: ClassVar[Tags] = tagged(
        Discipline.tags, objective="priority", knowledge="none", preemption="evict", resources="1-d"
    )
    buckets: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, cycle: CyclePlan) -> None:
        state = cycle.state
        if not state.pending:
            return
        every = state.competing_jobs.groups.values()
        bits = contested(every, cycle.previous)
        if bits == 0:
            return
        groups = [group for group in every if group.pools & bits]
        # On ties waiting jobs precede running ones, each in the order of entry.
        live = [cycle.staying(group.pending) for group in groups] + [group.running for group in groups]
        rows = np.fromiter(chain.from_iterable(live), dtype=np.int64)
        pools = np.repeat(np.array([group.pools for group in groups] * 2), [len(part) for part in live])
        order = cycle.ranking(rows)
        ranked = rows[order]
        moves = select(state.jobs, ranked, pools[order], state.pools[:, P_CAPACITY].copy())
        for row in rows[np.sort(order[moves == STOP])].tolist():
            cycle.preempt(row)
            cycle.placer.trial.evict(state.running[row])
        failed: set[int] = set()
        for row in ranked[moves == START].tolist():
            shape = state.shape_of(row)
            if shape.index in failed:
                continue
            result = cycle.place(row, shape)
            if isinstance(result, NoFit):
                failed.add(shape.index)
            else:
                cycle.start(row, result)
