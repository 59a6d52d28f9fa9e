"""The model of "Priority Matters" (arXiv 2511.08373), for comparison: one Boolean for each pair of pod and node.

For each priority, the highest first: PLACE the most pods of this priority and above; then DISRUPT as few pods as
possible. Each stage gets a share of the time, as published. Gangs, GPU models and topology domains are our additions.
"""

from __future__ import annotations

from typing import Any

from kant.optimize.packing.certificate import Packing, trivial_bounds
from kant.optimize.packing.problem import WAITS, Assignment, Problem
from kant.optimize.solvers import cp_sat, deterministic

RESERVED = 0.6
"""The share of the time that is divided among the tiers in advance. The rest goes to the first tiers that need it."""
MOVE_FRACTION = 0.5
"""The share of a tier's time for DISRUPT."""
PAD = 0.2
"""Seconds of the limit that the authors reserve for the communication with the solver."""
EPSILON = 0.005


def solve(problem: Problem, limit: float) -> Packing:
    """The plan of the published model within `limit` deterministic seconds; or the present state, if that is better."""
    return _Stages(problem, limit).run()


class _Stages:
    """The model with the stages that have been added to it, and the remaining time."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem = problem
        self.left = max(limit - PAD, EPSILON)
        self.reserved = RESERVED * self.left
        self.free = self.left - self.reserved
        self.spent = 0.0
        self.found: Assignment | None = None
        self.model: Any = cp_sat().CpModel()
        self.on = {
            (i, n): self.model.new_bool_var("") for i, nodes in enumerate(problem.eligible) for n in nodes
        }  # fmt: skip
        self.placed = [self.model.new_bool_var("") for _ in problem.request]
        self.constrain()
        self.hint(problem.current)

    def constrain(self) -> None:
        """Add capacity, gangs and domains, and that some waiting pod is placed, so that doing nothing is excluded."""
        problem, model = self.problem, self.model
        for i, nodes in enumerate(problem.eligible):
            model.add(sum(self.on[i, n] for n in nodes) == self.placed[i])
        for n, capacity in enumerate(problem.capacity):
            here = [i for i in range(len(problem.request)) if (i, n) in self.on]
            for r, amount in enumerate(capacity):
                model.add(sum(problem.request[i][r] * self.on[i, n] for i in here) <= amount)
        for unit in problem.units:
            for i in unit[1:]:
                model.add(self.placed[i] == self.placed[unit[0]])
            level = problem.instance.pods[unit[0]].within
            if level and len(unit) > 1:
                names = sorted({problem.domain(n, level) for i in unit for n in problem.eligible[i]})
                chosen = {name: model.new_bool_var("") for name in names}
                model.add(sum(chosen.values()) == self.placed[unit[0]])
                for i in unit:
                    for n in problem.eligible[i]:
                        model.add_implication(self.on[i, n], chosen[problem.domain(n, level)])
        waiting = [self.placed[i] for i, node in enumerate(problem.current) if node == WAITS]
        if waiting:
            model.add(sum(waiting) >= 1)

    def hint(self, assignment: Assignment) -> None:
        self.model.clear_hints()
        for i, node in enumerate(assignment):
            self.model.add_hint(self.placed[i], node != WAITS)
            for n in self.problem.eligible[i]:
                self.model.add_hint(self.on[i, n], n == node)

    def stage(self, goal: Any, maximize: bool, limit: float) -> tuple[str, int, int]:
        """Solve for one goal and keep its value as a constraint; returns the status, the value and its bound."""
        (self.model.maximize if maximize else self.model.minimize)(goal)
        solver = deterministic(limit)
        status = solver.status_name(solver.solve(self.model))
        used = solver.response_proto.deterministic_time
        self.spent += used
        self.left -= used
        if status not in ("OPTIMAL", "FEASIBLE"):
            return status, 0, 0
        value, bound = round(solver.objective_value), round(solver.best_objective_bound)
        self.found = tuple(
            next((n for n in nodes if solver.boolean_value(self.on[i, n])), WAITS)
            for i, nodes in enumerate(self.problem.eligible)
        )
        self.model.add(goal >= value) if maximize else self.model.add(goal <= value)
        if status == "OPTIMAL":
            self.model.add(goal == value)
        self.hint(self.found)
        return status, value, bound

    def run(self) -> Packing:
        """Run all stages, from the highest tier down."""
        problem = self.problem
        running = [i for i, node in enumerate(problem.current) if node != WAITS]
        if len(running) == len(problem.current):
            return Packing(problem.current, True, problem.placed(problem.current), 0, 0.0)
        statuses, tops = [], []
        tiers = len(problem.priorities)
        for t in range(tiers):
            cap = min(self.left, self.reserved / (tiers - t) + self.free)
            if cap <= EPSILON:
                break
            before = self.left
            above = [i for i, tier in enumerate(problem.tier) if tier <= t]
            goal = sum(self.placed[i] for i in above)
            status, _, bound = self.stage(goal, True, cap * (1 - MOVE_FRACTION))
            statuses.append(status)
            tops.append(bound)
            if status not in ("OPTIMAL", "FEASIBLE"):
                break
            cap -= before - self.left
            mine = [i for i in above if problem.current[i] != WAITS]
            if mine and cap > EPSILON:
                disruption = sum(self.placed[i] - 2 * self.on[i, problem.current[i]] for i in mine)
                statuses.append(self.stage(disruption, False, cap)[0])
            used = before - self.left
            of_free = min(self.free, used)
            self.free -= of_free
            self.reserved = max(0.0, self.reserved - (used - of_free))
        return self.packing(statuses, tops, complete=len(tops) == tiers)

    def packing(self, statuses: list[str], tops: list[int], complete: bool) -> Packing:
        """The better of the plan and the present state, with what the stages have proven."""
        problem = self.problem
        best = problem.current
        if self.found is not None and problem.placed(self.found) > problem.placed(best):
            best = self.found
        bounds = trivial_bounds(problem)
        if tops and statuses[0] in ("OPTIMAL", "FEASIBLE"):
            bounds[0] = max(min(bounds[0], tops[0]), problem.placed(best)[0])
        none_fits = statuses == ["INFEASIBLE"]
        if none_fits:
            bounds = list(problem.placed(best))
        proven = none_fits or (complete and set(statuses) == {"OPTIMAL"})
        return Packing(best, proven, tuple(bounds), 0, self.spent)
