"""The shortest plan of a small program, with its proof: a model for CP-SAT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kant.model.errors import InputError
from kant.optimize.residency.program import COPY, DROP, KEEP, BufferAction, Program, duration, uses_of
from kant.optimize.solvers import cp_sat, deterministic

MOST = 2_000_000
"""The maximum size of a model: the sum, over all uses, of the squared number of steps at which a copy can begin."""


class Best(NamedTuple):
    """The best plan found, and a lower bound on the time of any plan. If the two are equal, the plan is optimal."""

    choices: tuple[BufferAction, ...]
    bound: int


def shortest(program: Program, choices: Sequence[BufferAction], limit: float = 10.0) -> Best:
    """Look for a better plan than `choices` for `limit` deterministic seconds. Returns `choices` if none is found.

    Raises InputError if CP-SAT is not installed, or the program is too long.
    """
    cp_model = cp_sat()
    model: Any = cp_model.CpModel()
    uses, compute = uses_of(program), [step.compute for step in program.steps]
    spans = (use.step - (uses[use.before].step if use.before >= 0 else 0) for use in uses)
    if sum(span * span for span in spans) > MOST:
        raise InputError("the program", "fewer steps between the uses of its buffers, or --search beam")
    dropped: list[Any] = []
    kept: list[Any] = []
    begun: list[dict[int, Any]] = []
    room: list[list[Any]] = [[] for _ in compute]
    queue: list[list[Any]] = [[] for _ in compute]
    reads: list[list[Any]] = [[] for _ in compute]
    for u, use in enumerate(uses):
        drop, keep = model.new_bool_var(""), model.new_bool_var("")
        low = uses[use.before].step + 1 if use.before >= 0 else 0
        here = {} if use.made else {first: model.new_bool_var("") for first in range(low, use.step)}
        model.add_exactly_one([drop, keep, *here.values()])
        if not use.made:
            if use.before < 0:
                model.add(keep == 0)
            else:
                model.add_implication(keep, ~dropped[use.before])
        for step in range(use.step if use.made else low, use.step + 1):
            room[step].append(use.size * keep)
        parts = []
        for step in range(low, use.step):
            if here:
                part = model.new_int_var(0, min(compute[step], use.ticks), "")
                under_way = sum(chosen for first, chosen in here.items() if first <= step)
                model.add(part <= min(compute[step], use.ticks) * under_way)
                parts.append(part)
                queue[step].append(part)
        if here:
            model.add(sum(parts) >= use.ticks * sum(here.values()))
        for first, chosen in here.items():
            for step in range(first, use.step + 1):
                room[step].append(use.size * chosen)
        reads[use.step].append(use.ticks * drop)
        given = choices[u]
        model.add_hint(drop, given.action == DROP)
        model.add_hint(keep, given.action == KEEP)
        for first, chosen in here.items():
            model.add_hint(chosen, given.action == COPY and given.start == first)
        dropped.append(drop)
        kept.append(keep)
        begun.append(here)
    took = []
    for step, least in enumerate(compute):
        model.add(sum(room[step]) <= program.capacity)
        model.add(sum(queue[step]) <= least)
        most = max(least, sum(use.ticks for use in uses if use.step == step))
        took.append(model.new_int_var(least, most, ""))
        model.add(took[-1] >= sum(reads[step]))
    model.minimize(sum(took))
    solver = deterministic(limit)
    status = solver.solve(model)
    old = duration(program, choices)
    bound = max(sum(compute), -int(-solver.best_objective_bound // 1))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or round(solver.objective_value) >= old:
        return Best(tuple(choices), min(bound, old))
    found = []
    for drop, keep, here in zip(dropped, kept, begun, strict=True):
        first = next((first for first, chosen in here.items() if solver.value(chosen)), -1)
        found.append(BufferAction(DROP if solver.value(drop) else KEEP if solver.value(keep) else COPY, first))
    return Best(tuple(found), min(bound, duration(program, found)))
