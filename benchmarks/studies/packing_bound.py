"""The most that any placement could allocate of some pods, whole: a relaxed packing.

A linear program in which pods may be split, over kinds of nodes. Each kind has the GPUs, the CPU and the memory of its
nodes together; of one kind of pods it takes at most what fits on its nodes if they have them alone, which keeps GPU
models, nodes that are too small and pods of several GPUs. Whole GPUs are filled by patterns of shares (Gilmore and
Gomory, Operations Research 9(6), 1961): columns are generated until the rest could gain less than half a GPU, which is
added. So the bound is above every real packing; pods that ask for no GPU are left out, which only raises it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from ortools.linear_solver import pywraplp

from kant.model.node import ClusterSpec
from kant.model.units import GPU
from kant.workload.workload import Workload

REST = 0.5
"""GPUs that further columns could gain at most when the search for them ends."""
CORE, BLOCK = 1000, 1 << 16
"""Units of CPU and memory in which the numbers of the program stay small."""


def most_allocated(workload: Workload, cluster: ClusterSpec) -> float:
    """GPUs that could be allocated to the pods of `workload` at most, if all were known and packed at once."""
    program = _Program(workload, cluster)
    while program.solver.NumVariables():
        value, rest = program.solve()
        if rest < REST:
            return value + rest
    return 0.0  # no pod fits anywhere


class _Program:
    def __init__(self, workload: Workload, cluster: ClusterSpec) -> None:
        self.solver: Any = pywraplp.Solver.CreateSolver("CLP")
        self.kinds = list(Counter((n.model, n.gpus, n.cpu, n.memory) for n in cluster.nodes).items())
        pods: Counter[tuple[int, int, int, int, tuple[str, ...]]] = Counter()
        for i in np.flatnonzero(workload.gpus > 0).tolist():
            columns = (workload.gpus, workload.milli, workload.cpu, workload.memory)
            gpus, milli, cpu, memory = (int(column[i]) for column in columns)
            pods[gpus, milli, cpu, memory, workload.model_sets[workload.models[i]]] += 1
        self.sizes = sorted({milli for _, milli, *_ in pods if milli < GPU}, reverse=True)
        self.unit = int(np.gcd.reduce([*self.sizes, GPU]))
        self.gpus = [self._at_most(count * kind[1]) for kind, count in self.kinds]
        cpus = [self._at_most(count * kind[2] / CORE) for kind, count in self.kinds]
        memories = [self._at_most(count * kind[3] / BLOCK) for kind, count in self.kinds]
        self.shares = [[self._at_most(0) for _ in self.sizes] for _ in self.kinds]
        self.solver.Objective().SetMaximization()
        for (gpus, milli, cpu, memory, models), count in pods.items():
            demand = self._at_most(count)
            for k, ((model, has, has_cpu, has_memory), nodes) in enumerate(self.kinds):
                fits = has // gpus * (GPU // milli)
                fits = min(fits, has_cpu // cpu) if cpu else fits
                fits = min(fits, has_memory // memory) if memory else fits
                if fits == 0 or (models and model not in models):
                    continue
                placed = self.solver.NumVar(0, fits * nodes, "")
                self.solver.Objective().SetCoefficient(placed, gpus * milli / GPU)
                demand.SetCoefficient(placed, 1)
                cpus[k].SetCoefficient(placed, cpu / CORE)
                memories[k].SetCoefficient(placed, memory / BLOCK)
                taken = self.gpus[k] if milli == GPU else self.shares[k][self.sizes.index(milli)]
                taken.SetCoefficient(placed, gpus)
        for k in range(len(self.kinds)):
            for s, size in enumerate(self.sizes):
                self._add(k, [GPU // size if s == other else 0 for other in range(len(self.sizes))])

    def _at_most(self, most: float) -> Any:
        return self.solver.Constraint(-self.solver.infinity(), most)

    def _add(self, kind: int, pattern: list[int]) -> None:
        """GPUs of a kind of nodes that are filled with so many shares of each size."""
        filled = self.solver.NumVar(0, self.solver.infinity(), "")
        self.gpus[kind].SetCoefficient(filled, 1)
        for share, count in zip(self.shares[kind], pattern, strict=True):
            share.SetCoefficient(filled, -count)

    def solve(self) -> tuple[float, float]:
        """GPUs allocated with the patterns so far, and what others could gain at most; those are added."""
        parameters = pywraplp.MPSolverParameters()
        parameters.SetIntegerParam(parameters.INCREMENTALITY, parameters.INCREMENTALITY_OFF)
        if self.solver.Solve(parameters) != self.solver.OPTIMAL:
            raise ArithmeticError("the relaxed packing was not solved")
        value, rest, better = self.solver.Objective().Value(), 0.0, []
        for k, (kind, nodes) in enumerate(self.kinds):
            worth, pattern = self._best_pattern([share.dual_value() for share in self.shares[k]])
            gain = worth - self.gpus[k].dual_value()
            if gain > 1e-9:
                rest += gain * kind[1] * nodes
                better.append((k, pattern))
        for k, pattern in better if rest >= REST else []:
            self._add(k, pattern)
        return value, rest

    def _best_pattern(self, prices: list[float]) -> tuple[float, list[int]]:
        """The shares that fill one GPU for the highest price: a knapsack."""
        room = GPU // self.unit
        worth, takes = [0.0] * (room + 1), [-1] * (room + 1)
        for gap in range(1, room + 1):
            worth[gap] = worth[gap - 1]
            for s, size in enumerate(self.sizes):
                before = gap - size // self.unit
                if before >= 0 and worth[before] + prices[s] > worth[gap]:
                    worth[gap], takes[gap] = worth[before] + prices[s], s
        pattern, gap = [0] * len(self.sizes), room
        while gap > 0:
            if takes[gap] < 0:
                gap -= 1
            else:
                pattern[takes[gap]] += 1
                gap -= self.sizes[takes[gap]] // self.unit
        return worth[room], pattern
