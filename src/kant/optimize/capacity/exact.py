"""CP-SAT for capacity plans: the optimum of small instances, and better starts for the tasks around a peak."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.model.errors import InputError
from kant.optimize.capacity.planning import Planning
from kant.optimize.solvers import cp_sat, deterministic

WHOLE = 200
"""The maximum number of tasks of an instance that is solved as a whole."""
FREE = 80
"""The number of free tasks in a window around a peak."""
EFFORT = 2.0
"""Deterministic seconds of the solver for a whole instance. A window gets a tenth of them."""


def is_there() -> bool:
    """Whether CP-SAT is installed."""
    try:
        cp_sat()
    except InputError:
        return False
    return True


def is_small(planning: Planning) -> bool:
    """Whether the instance is solved as a whole."""
    return len(planning.starts) <= WHOLE and bool(planning.movable.all())


def polish(planning: Planning, windows: int, limit: float = math.inf, seed: int = 0) -> None:
    """Solve a small instance as a whole, or free the tasks around a peak `windows` times. May raise the proven bound.

    The solver stops after `limit` deterministic seconds.
    """
    count = len(planning.starts)
    movable = planning.movable[planning.tasks.process] > 0
    if is_small(planning):
        if limit > 0:
            solve_free(planning, movable, min(EFFORT, limit), seed)
        return
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(windows):
        excess = (planning.peaks - planning.bounds) * planning.tasks.cost
        if not excess.any() or limit <= 0:
            return
        resource = int(rng.choice(np.flatnonzero(excess)))
        tick = int(rng.choice(np.flatnonzero(planning.usage[resource] == planning.peaks[resource])))
        away = np.abs(planning.starts + planning.tasks.duration // 2 - tick).astype(float)
        away[~movable] = np.inf
        near = np.argsort(away, kind="stable")[:FREE]
        free = np.zeros(count, bool)
        free[near] = True
        limit -= solve_free(planning, free & movable, min(EFFORT / 10, limit), seed)


def solve_free(planning: Planning, free: NDArray[np.bool_], effort: float, seed: int = 0) -> float:
    """Solve for the starts of the free tasks, with all others fixed. Update the plan if the result is cheaper.

    The solver stops after `effort` deterministic seconds. Returns the deterministic seconds spent.
    """
    cp_model = cp_sat()
    tasks, model = planning.tasks, cp_model.CpModel()
    background = planning.usage.copy()
    starts: dict[int, Any] = {}
    spans: dict[int, Any] = {}
    for i in np.flatnonzero(free).tolist():
        before = tasks.before[tasks.before_from[i] : tasks.before_from[i + 1]].tolist()
        after = tasks.after[tasks.after_from[i] : tasks.after_from[i + 1]].tolist()
        duration, at = int(tasks.duration[i]), int(planning.starts[i])
        fixed_ends = [int(planning.starts[j] + tasks.duration[j]) for j in before if not free[j]]
        fixed_starts = [int(planning.starts[j]) for j in after if not free[j]]
        low = max([int(tasks.earliest[i]), *fixed_ends])
        high = min([int(tasks.latest[i]), *(start - duration for start in fixed_starts)])
        starts[i] = model.new_int_var(low, high, "")
        spans[i] = model.new_fixed_size_interval_var(starts[i], duration, "")
        model.add_hint(starts[i], at)
        for j in before:
            if free[j]:  # tasks are in topological order, so the variable of j exists
                model.add(starts[i] >= starts[j] + int(tasks.duration[j]))
        background[:, at : at + duration] -= tasks.demand[i][:, None]
    caps = []
    least = np.maximum(planning.bounds, background.max(axis=1))
    spare = int(((planning.peaks - least) * tasks.cost).sum())
    for r, peak in enumerate(planning.peaks.tolist()):
        cost = int(tasks.cost[r])
        highest = int(least[r]) + spare // cost if cost else int(tasks.demand[:, r].sum())
        cap = model.new_int_var(int(least[r]), max(highest, peak), "")  # a bound that excludes no cheaper plan
        caps.append(cap)
        used = [i for i in spans if tasks.demand[i, r]]
        edges = np.flatnonzero(np.diff(background[r])) + 1
        blocks = [
            (int(a), int(b), int(background[r, a]))
            for a, b in zip([0, *edges], [*edges, planning.horizon], strict=True)
            if background[r, a]
        ]
        model.add_cumulative(
            [spans[i] for i in used] + [model.new_fixed_size_interval_var(a, b - a, "") for a, b, _ in blocks],
            [int(tasks.demand[i, r]) for i in used] + [level for *_, level in blocks],
            cap,
        )
        model.add_hint(cap, peak)
    model.minimize(sum(int(cost) * cap for cost, cap in zip(tasks.cost, caps, strict=True)))
    solver = deterministic(effort, seed % (1 << 30))
    status = solver.solve(model)
    spent = float(solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return spent
    old = planning.cost
    if free.all():
        planning.proven = max(planning.proven, -int(-solver.best_objective_bound // 1))
    if round(solver.objective_value) < old:
        for i, start in starts.items():
            planning.move(i, solver.value(start))
    return spent
