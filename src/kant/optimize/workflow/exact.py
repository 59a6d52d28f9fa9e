"""The shortest plan of a small graph, with its proof: a model for CP-SAT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kant.model.errors import InputError
from kant.optimize.solvers import cp_sat, deterministic
from kant.optimize.workflow.bounds import lower_bound
from kant.optimize.workflow.graph import NEVER, Graph, StageRun, makespan

MOST = 50_000
"""The maximum size of a model: the number of dependencies and stages, times the number of processors."""


def is_small(graph: Graph) -> bool:
    """Whether a model of the graph can be built in a few seconds."""
    waits = sum(len(stage.before) for stage in graph.stages)
    return (waits + len(graph.stages)) * len(graph.processors) <= MOST


class Shortest(NamedTuple):
    """The best plan found, and a lower bound on the end of any plan. If the two are equal, the plan is optimal."""

    runs: tuple[StageRun, ...]
    bound: int

    @property
    def proven(self) -> bool:
        return makespan(self.runs) <= self.bound


def shortest(graph: Graph, runs: Sequence[StageRun], limit: float = 10.0) -> Shortest:
    """Look for a shorter plan than `runs` for `limit` deterministic seconds. Returns `runs` itself if none is found.

    Raises InputError if CP-SAT is not installed, or the graph is too large.
    """
    cp_model = cp_sat()
    if not is_small(graph):
        raise InputError("the workflow", f"at most {MOST:,} dependencies and stages times processors, for a proof")
    end, low = makespan(runs), lower_bound(graph)
    hint = {run.stage: run for run in runs}
    if end <= low:
        return Shortest(tuple(runs), end)
    model: Any = cp_model.CpModel()
    starts: list[Any] = []
    ends: list[Any] = []
    on: list[dict[int, Any]] = []  # by processor: whether the stage runs there
    spans: list[list[Any]] = [[] for _ in graph.processors]
    for i, stage in enumerate(graph.stages):
        start, stop = model.new_int_var(0, end, ""), model.new_int_var(0, end, "")
        here: dict[int, Any] = {}
        for p, duration in enumerate(stage.durations):
            if duration != NEVER:
                here[p] = model.new_bool_var("")
                # With intervals that share a variable for their end, CP-SAT 9.15 proves wrong optima.
                model.add(stop == start + duration).only_enforce_if(here[p])
                if duration:
                    spans[p].append(model.new_optional_fixed_size_interval_var(start, duration, here[p], ""))
                model.add_hint(here[p], hint[i].processor == p)
        model.add_exactly_one(here.values())
        model.add_hint(start, hint[i].start)
        for j, ticks in stage.before:
            model.add(start >= ends[j])
            for p, chosen in here.items():
                if p not in on[j]:
                    model.add(start >= ends[j] + ticks).only_enforce_if(chosen)
                else:  # only if the earlier stage runs on another processor
                    model.add(start >= ends[j] + ticks).only_enforce_if([chosen, ~on[j][p]])
        starts.append(start)
        ends.append(stop)
        on.append(here)
    for spans_of in spans:
        model.add_no_overlap(spans_of)
    last = model.new_int_var(low, end, "")
    for stop in ends:
        model.add(last >= stop)
    model.minimize(last)
    solver = deterministic(limit)
    status = solver.solve(model)
    bound = max(low, -int(-solver.best_objective_bound // 1)) if status != cp_model.MODEL_INVALID else low
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.value(last) >= end:
        return Shortest(tuple(runs), min(bound, end))
    found = []
    for i, stage in enumerate(graph.stages):
        p = next(p for p, chosen in on[i].items() if solver.value(chosen))
        at = solver.value(starts[i])
        found.append(StageRun(0, i, p, at, at + stage.durations[p]))
    return Shortest(tuple(found), min(bound, makespan(found)))
