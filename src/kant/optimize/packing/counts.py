"""The aggregated model: it decides how many pods of each class run on each node. Pods of a class are identical.

Identical pods make a packing model symmetric; their numbers do not. A class is a gang's pods of one kind, or all other
pods with equal requests, priority and GPU models. The model covers some nodes and all pods that may run on them; the
rest of the cluster stays as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from kant.optimize.packing.problem import WAITS, Assignment, Problem
from kant.optimize.solvers import cp_sat, deterministic


class CountModel:
    """A solver model of how many pods of each class run on each of `nodes`: those in `assignment`, and waiting pods.

    `waiting` restricts the waiting pods. With `apart`, each pod is a class of its own. If pods of a gang are on other
    nodes, the whole gang stays placed.
    """

    def __init__(
        self, problem: Problem, assignment: Assignment, nodes: Iterable[int], waiting: Iterable[int] | None = None,
        *, apart: bool = False,
    ) -> None:  # fmt: skip
        self.problem, self.assignment = problem, assignment
        self.nodes = tuple(nodes)
        inside = set(self.nodes)
        wanted = set(waiting) if waiting is not None else None
        self.pods = [
            i for i, n in enumerate(assignment) if n in inside or (n == WAITS and (wanted is None or i in wanted))
        ]
        classes: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i in self.pods:
            pod = problem.instance.pods[i]
            classes[pod.group, problem.tier[i], problem.request[i], pod.models, i if apart else -1].append(i)
        self.classes = list(classes.values())
        self.model: Any = cp_sat().CpModel()
        self.count: dict[tuple[int, int], Any] = {}
        self.stay: dict[tuple[int, int], Any] = {}
        self.whole: dict[int, Any] = {}
        self._chosen: dict[tuple[int, str], Any] = {}
        self._add_classes(inside)
        self._add_capacity()
        self._add_gangs()

    def _add_classes(self, inside: set[int]) -> None:
        problem, model = self.problem, self.model
        self.now = [Counter(problem.current[i] for i in pods) for pods in self.classes]
        for k, pods in enumerate(self.classes):
            nodes = [n for n in problem.eligible[pods[0]] if n in inside]
            for n in nodes:
                self.count[k, n] = model.new_int_var(0, min(len(pods), problem.fitting(pods[0], n)), "")
                if self.now[k][n]:
                    self.stay[k, n] = model.new_int_var(0, self.now[k][n], "")
                    model.add(self.stay[k, n] <= self.count[k, n])
            model.add(self.placed(k) <= len(pods))

    def _add_capacity(self) -> None:
        problem = self.problem
        for n in self.nodes:
            here = [(k, pods[0]) for k, pods in enumerate(self.classes) if (k, n) in self.count]
            for r, amount in enumerate(problem.capacity[n]):
                self.model.add(sum(problem.request[i][r] * self.count[k, n] for k, i in here) <= amount)

    def _add_gangs(self) -> None:
        """Place all pods of a gang or none, in one domain of the level that it requires."""
        problem, model = self.problem, self.model
        of_gang: dict[int, list[int]] = defaultdict(list)
        for k, pods in enumerate(self.classes):
            if problem.instance.pods[pods[0]].group:
                of_gang[problem.unit[pods[0]]].append(k)
        for u, classes in of_gang.items():
            unit = problem.units[u]
            mine = {i for k in classes for i in self.classes[k]}
            outside = [self.assignment[i] for i in unit if i not in mine]
            self.whole[u] = on = model.new_bool_var("")
            if any(node != WAITS for node in outside):
                model.add(on == 1)
            elif outside:  # some waiting pods of the gang were left out
                model.add(on == 0)
            for k in classes:
                model.add(self.placed(k) == len(self.classes[k]) * on)
            level = problem.instance.pods[unit[0]].within
            if level:
                self._add_domains(u, classes, level, {problem.domain(n, level) for n in outside if n != WAITS})

    def _add_domains(self, unit: int, classes: list[int], level: str, kept: set[str]) -> None:
        domains: dict[str, list[int]] = defaultdict(list)
        for n in sorted({n for k, n in self.count if k in classes}):
            domains[self.problem.domain(n, level)].append(n)
        for name, nodes in domains.items():
            self._chosen[unit, name] = chosen = self.model.new_bool_var("")
            if kept and name not in kept:
                self.model.add(chosen == 0)
            for k in classes:
                there = sum(self.count[k, n] for n in nodes if (k, n) in self.count)
                self.model.add(there == len(self.classes[k]) * chosen)
        self.model.add(sum(self._chosen[unit, name] for name in domains) == self.whole[unit])

    def placed(self, k: int) -> Any:
        """The number of running pods of a class."""
        return sum(self.count[k, n] for n in self.problem.eligible[self.classes[k][0]] if (k, n) in self.count)

    def placed_of(self, tier: int) -> Any:
        """The number of running pods of a tier."""
        return sum(self.placed(k) for k, pods in enumerate(self.classes) if self.problem.tier[pods[0]] == tier)

    def disturbed(self) -> Any:
        """The number of running pods that do not stay where they are."""
        running = sum(1 for i in self.pods if self.problem.current[i] != WAITS)
        return running - sum(self.stay.values())

    def hint(self, assignment: Assignment) -> None:
        """Start the search from an assignment, which gives every variable a value."""
        model, problem = self.model, self.problem
        model.clear_hints()
        for k, pods in enumerate(self.classes):
            there = Counter(assignment[i] for i in pods)
            for n in problem.eligible[pods[0]]:
                if (k, n) in self.count:
                    model.add_hint(self.count[k, n], there[n])
                if (k, n) in self.stay:
                    model.add_hint(self.stay[k, n], min(there[n], self.now[k][n]))
        for u, on in self.whole.items():
            node = assignment[problem.units[u][0]]
            model.add_hint(on, node != WAITS)
            for (unit, name), chosen in self._chosen.items():
                if unit == u:
                    level = problem.instance.pods[problem.units[u][0]].within
                    model.add_hint(chosen, node != WAITS and problem.domain(node, level) == name)

    def solve(self, limit: float) -> tuple[Any, str]:
        """Run the solver once. Returns the solver and its status."""
        solver = deterministic(limit)
        return solver, solver.status_name(solver.solve(self.model))

    def decode(self, solver: Any) -> Assignment:
        """Assign pods according to the counts: pods stay where possible; then running pods come before waiting pods."""
        problem = self.problem
        found = list(self.assignment)
        for k, pods in enumerate(self.classes):
            nodes = [n for n in problem.eligible[pods[0]] if (k, n) in self.count]
            left = Counter({n: solver.value(self.count[k, n]) for n in nodes})
            rest: list[int] = []
            for i in pods:
                node = problem.current[i]
                if left[node] > 0:
                    left[node] -= 1
                    found[i] = node
                else:
                    rest.append(i)
            rest.sort(key=lambda i: problem.current[i] == WAITS)
            free = sorted(left.elements())
            for i, place in zip(rest, free + [WAITS] * (len(rest) - len(free)), strict=True):
                found[i] = place
        return tuple(found)


def lexicographic(model: CountModel, tiers: Sequence[int]) -> Any:
    """The objective to maximise: pods placed by tier, the highest first; then few moves and evictions."""
    weight = 1 + sum(1 for i in model.pods if model.problem.current[i] != WAITS)
    goal = -model.disturbed()
    for t in reversed(tiers):
        goal = goal + weight * model.placed_of(t)
        weight = min(weight * (1 + sum(1 for i in model.pods if model.problem.tier[i] == t)), 1 << 40)
    return goal
