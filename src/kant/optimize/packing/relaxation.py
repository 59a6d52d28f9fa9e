"""Counting bounds: how many pods of a tier fit if all nodes of a kind are merged into one large node.

Pods that do not fit on the merged nodes fit in no assignment. Two kinds of cuts keep limits of single nodes: on the
pods of a class per node, and on the pods per node that each need more than a half, a third or a quarter of it. The
program has a count for each class and kind of node, whatever the cluster's size, and is solved in milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kant.optimize.packing.problem import Problem
from kant.optimize.solvers import cp_sat, deterministic

PARTS = (1, 2, 3)


class Relaxation:
    """The merged cluster, for one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for n, node in enumerate(problem.instance.nodes):
            kinds[problem.capacity[n], node.model, tuple(sorted(node.domains))].append(n)
        classes: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, pod in enumerate(problem.instance.pods):
            gang = pod.group
            classes[gang, problem.tier[i], problem.request[i], pod.models, pod.within].append(i)
        self.classes = list(classes.values())
        self.model: Any = cp_sat().CpModel()
        self.count: dict[tuple[int, int], Any] = {}
        for k, pods in enumerate(self.classes):
            eligible = set(problem.eligible[pods[0]])
            for kind, nodes in enumerate(kinds.values()):
                if nodes[0] in eligible:
                    fit = problem.fitting(pods[0], nodes[0]) * len(nodes)
                    self.count[k, kind] = self.model.new_int_var(0, min(fit, len(pods)), "")
            self.model.add(self._placed(k) <= len(pods))
        for kind, nodes in enumerate(kinds.values()):
            self._add_capacity(kind, nodes)
        gangs: dict[int, Any] = {}
        for k, pods in enumerate(self.classes):
            if problem.instance.pods[pods[0]].group:
                on = gangs.setdefault(problem.unit[pods[0]], self.model.new_bool_var(""))
                self.model.add(self._placed(k) == len(pods) * on)

    def _placed(self, k: int) -> Any:
        return sum(count for (mine, _), count in self.count.items() if mine == k)

    def _add_capacity(self, kind: int, nodes: list[int]) -> None:
        """Limit the sums over the nodes of a kind, and the number of large pods on each of them."""
        here = [
            (count, self.problem.request[self.classes[k][0]]) for (k, of), count in self.count.items() if of == kind
        ]
        for r, capacity in enumerate(self.problem.capacity[nodes[0]]):
            self.model.add(sum(request[r] * count for count, request in here) <= capacity * len(nodes))
            for part in PARTS:
                large = [count for count, request in here if request[r] * (part + 1) > capacity]
                if large:
                    self.model.add(sum(large) <= part * len(nodes))

    def bound(self, tier: int, above: tuple[int, ...], limit: float) -> tuple[int, float]:
        """Return the most pods of `tier` while each higher tier keeps at least `above`; and the seconds used."""
        model = self.model.clone()
        goals = {
            t: sum(self._placed(k) for k, pods in enumerate(self.classes) if self.problem.tier[pods[0]] == t)
            for t in range(tier + 1)
        }
        for t in range(tier):
            model.add(goals[t] >= above[t])
        model.maximize(goals[tier])
        solver = deterministic(limit)
        status = solver.status_name(solver.solve(model))
        most = self.problem.tier.count(tier)
        if status in ("OPTIMAL", "FEASIBLE"):
            most = min(most, int(solver.best_objective_bound + 1e-6))
        return most, float(solver.response_proto.deterministic_time)
