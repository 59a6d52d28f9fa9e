"""A capacity plan in progress, and the finished plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.compiled import compiled_at_once
from kant.model.errors import InputError
from kant.optimize.capacity.arrays import Numbers, TaskArrays, tasks_of
from kant.optimize.capacity.instance import Instance, Starts, cost_of, flat, peaks


@compiled_at_once
def energy_bounds(s: TaskArrays, horizon: int, begins: Numbers, steps: Numbers, bounds: Numbers) -> None:
    """Fill `bounds` by resource: the maximum, over spans of time, of work that must run in the span / its length.

    A task that may start from `earliest` to `latest` spends at least max(0, min(m, b - max(a, latest))) ticks in the
    span [a, b), where m is what is left of the task after a if it starts as early as possible (energetic reasoning: P.
    Baptiste, C. Le Pape, W. Nuijten, Annals of OR 92, 1999). In spans of one tick these are the compulsory parts. Spans
    begin at the ticks `begins`. `steps` [horizon + 2] is scratch memory.
    """
    for r in range(bounds.shape[0]):
        bounds[r] = 0
        for i in range(s.duration.shape[0]):
            bounds[r] = max(bounds[r], s.demand[i, r])
        for x in range(begins.shape[0]):
            a = begins[x]
            steps[:] = 0
            for i in range(s.duration.shape[0]):
                rest = min(s.duration[i], s.earliest[i] + s.duration[i] - a)
                if rest > 0 and s.demand[i, r] > 0:
                    begin = max(a, s.latest[i])
                    steps[begin] += s.demand[i, r]
                    steps[begin + rest] -= s.demand[i, r]
            slope, work = 0, 0
            for b in range(a + 1, horizon + 1):
                slope += steps[b - 1]
                work += slope
                bounds[r] = max(bounds[r], (work + b - a - 1) // (b - a))


LONGEST = 100_000
"""The maximum number of ticks from the first release to the last deadline."""
MOST_SPANS = 2_000
"""The maximum number of ticks at which spans for the bounds begin."""


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The start of each task in ticks, the resulting peak of each resource in units, and lower bounds for any plan."""

    starts: Starts
    peaks: dict[str, int]
    bounds: dict[str, int]
    cost: int
    bound: int

    @property
    def gap(self) -> float:
        """The cost above the bound, as a share of the bound."""
        return self.cost / self.bound - 1 if self.bound else 0.0


@dataclass(slots=True)
class Planning:
    """An instance as arrays, and the best plan so far."""

    instance: Instance
    tasks: TaskArrays
    zero: int
    horizon: int
    bounds: Numbers
    starts: Numbers
    usage: Numbers
    movable: Numbers
    """By process: whether its tasks may be moved."""
    proven: int = 0
    """A lower bound on the cost, proven by a solver."""

    @property
    def peaks(self) -> Numbers:
        """The peak use of each resource in the plan, in units."""
        return self.usage.max(axis=1) if self.horizon else np.zeros(len(self.bounds), np.int64)

    @property
    def cost(self) -> int:
        """The cost of the plan."""
        return int((self.peaks * self.tasks.cost).sum())

    def move(self, i: int, start: int) -> None:
        """Move task i to another start."""
        tasks = self.tasks
        self.usage[:, self.starts[i] : self.starts[i] + tasks.duration[i]] -= tasks.demand[i][:, None]
        self.usage[:, start : start + tasks.duration[i]] += tasks.demand[i][:, None]
        self.starts[i] = start

    def plan(self) -> CapacityPlan:
        """The finished plan, with starts by the names of processes and tasks."""
        rows = flat(self.instance)
        starts = {
            (process.id, task.id): int(at) + self.zero for (process, task), at in zip(rows, self.starts, strict=True)
        }
        peak = peaks(self.instance, starts)
        bounds = {resource.name: int(b) for resource, b in zip(self.instance.resources, self.bounds, strict=True)}
        bound = max(cost_of(self.instance, bounds), self.proven)
        return CapacityPlan(starts, peak, bounds, cost_of(self.instance, peak), bound)


def planning_of(instance: Instance) -> Planning:
    """An empty plan with lower bounds on the peaks. Raises InputError if the windows span too many ticks."""
    tasks, zero, horizon = tasks_of(instance)
    if horizon > LONGEST:
        raise InputError("processes", f"at most {LONGEST:,} ticks from first release to last deadline", horizon)
    bounds = np.zeros(len(instance.resources), np.int64)
    edges = np.unique(np.concatenate([tasks.earliest, tasks.latest]))
    begins = edges[:: -(-len(edges) // MOST_SPANS)]
    energy_bounds(tasks, horizon, begins, np.zeros(horizon + 2, np.int64), bounds)
    usage = np.zeros((len(bounds), max(horizon, 1)), np.int64)
    starts = np.zeros(len(tasks.duration), np.int64)
    movable = np.ones(len(instance.processes), np.int64)
    return Planning(instance, tasks, zero, horizon, bounds, starts, usage, movable)
