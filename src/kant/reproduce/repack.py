"""Repack: every job is placed from scratch in every cycle, as if moving cost nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.taxonomy import Tags, tagged
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline


class Repack(Discipline, frozen=True, tag="repack"):
    """Empty the cluster, then place waiting and running jobs in order; a job that does not fit is passed over.

    With `keep`, a running job first tries to stay where it is. Moving costs nothing: this is for reproducing
    published simulators, and `preemptive` is the discipline to use.
    """

    keep: bool = False

    source: ClassVar[str] = "Muri artifact, Zhao et al., SIGCOMM 2022; Tiresias simulator, NSDI 2019"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="none", preemption="move")
    buckets: ClassVar[bool] = False
    quotas: ClassVar[bool] = False

    def run(self, cycle: CyclePlan) -> None:
        state, trial = cycle.state, cycle.placer.trial
        cycle.demote()
        rows = np.sort(np.concatenate([cycle.going_on(), cycle.waiting_rows()]))  # ties keep the order of arrival
        ranked = rows[cycle.ranking(rows)]
        for row in cycle.going_on().tolist():
            trial.evict(state.running[row])
        failed: set[int] = set()
        starts: list[tuple[int, Allocation]] = []
        runs: set[int] = set()
        for row in ranked.tolist():
            held, shape = state.running.get(row), state.shape_of(row)
            if held is not None and self.keep and trial.is_free(held) and trial.keeps_apart(shape, held):
                trial.restore(held)
                runs.add(row)
                continue
            result = None if shape.index in failed else cycle.place(row, shape)
            if result is None or isinstance(result, NoFit):
                failed.add(shape.index)
                if held is not None:
                    cycle.preempt(row)
                continue
            runs.add(row)
            if held is None:
                starts.append((row, result))
            elif not np.array_equal(held, result):
                cycle.preempt(row, moved=True)
                starts.append((row, result))
        for row, allocation in starts:
            cycle.start(row, allocation)
        cycle.remember(ranked, runs)
