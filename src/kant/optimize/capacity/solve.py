"""Plans with the least weighted sum of peaks: insertion, then lower and lower targets, each reached by repair."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from kant.model.errors import InputError
from kant.optimize.capacity import exact
from kant.optimize.capacity.arrays import Numbers
from kant.optimize.capacity.instance import Instance, Starts, flat, unchanged
from kant.optimize.capacity.kernels import insert_all, repair
from kant.optimize.capacity.learned import LearnedInsertion
from kant.optimize.capacity.planning import CapacityPlan, Planning, planning_of

STEPS, STEPS_A_TASK = 40_000, 100
"""Steps of a repair: STEPS times the share of tasks that may move, but at most STEPS_A_TASK per movable task."""
ROUNDS = 400
"""The maximum number of targets that are tried."""
HEAT = 50.0
"""The initial temperature of a repair: added squared overload of this size is accepted with probability 1/e."""
WINDOWS = 10
"""The number of windows around peaks that CP-SAT solves."""
WORK = 300_000_000
"""The amount of `work` in `repair` that counts as a deterministic second: about one core-second."""
SHARE = 0.8
"""The share of the time limit that repair may use."""
SHARE_SMALL = 0.3
"""The share that repair may use if CP-SAT solves the whole instance."""


def plan(
    instance: Instance, rounds: int = ROUNDS, windows: int = WINDOWS, limit: float = math.inf, seed: int = 0,
    order: LearnedInsertion | None = None,
) -> CapacityPlan:  # fmt: skip
    """A plan of low cost: insertion, repair towards lower targets, and CP-SAT if it is installed.

    The search ends after `rounds` of repair and `windows` of CP-SAT, or `limit` deterministic seconds after insertion,
    or with a plan that costs as much as the bound. With `order`, insertion uses it instead of fixed orders.
    """
    planning = planning_of(instance)
    insert_by(planning, order)
    solver = windows > 0 and exact.is_there()
    share = SHARE_SMALL if solver and exact.is_small(planning) else SHARE
    spent = lower(planning, rounds, seed, share * limit)
    if solver and planning.cost > int((planning.bounds * planning.tasks.cost).sum()):
        exact.polish(planning, windows, limit - spent, seed)
    return planning.plan()


def replan(
    instance: Instance, old: Instance, starts: Starts, rounds: int = ROUNDS // 20, limit: float = math.inf,
    seed: int = 0, order: LearnedInsertion | None = None,
) -> CapacityPlan:  # fmt: skip
    """A plan after a change of the instance. Unchanged processes keep their starts; the others are planned around them.

    `limit` is as in `plan`. Raises InputError if `starts` lacks a task of an unchanged process.
    """
    planning = planning_of(instance)
    keep(planning, unchanged(old, instance), starts)
    insert_by(planning, order)
    lower(planning, rounds, seed, limit)
    return planning.plan()


def keep(planning: Planning, same: Set[str], starts: Starts) -> None:
    """Set the starts of the processes in `same`, and fix them."""
    for i, (process, task) in enumerate(flat(planning.instance)):
        if process.id not in same:
            continue
        at = starts.get((process.id, task.id))
        if at is None:
            raise InputError("the plan before", f"a start of task {task.id} of process {process.id}")
        planning.movable[planning.tasks.process[i]] = 0
        planning.starts[i] = at - planning.zero
        end = planning.starts[i] + planning.tasks.duration[i]
        planning.usage[:, planning.starts[i] : end] += planning.tasks.demand[i][:, None]


def insert_by(planning: Planning, order: LearnedInsertion | None) -> None:
    """Insert the movable processes in a learned order, or in the best of several."""
    if order is None:
        insert_best(planning)
    else:
        order.insert(planning)


def insert_best(planning: Planning) -> None:
    """Insert the movable processes in several orders, and keep the cheapest result."""
    tasks = planning.tasks
    movable = np.flatnonzero(planning.movable)
    if not len(movable):
        return
    work = tasks.duration * (tasks.demand @ tasks.cost)
    of_process = np.add.reduceat(np.append(work, 0), np.minimum(tasks.tasks_from[:-1], len(work)))
    slack = np.array(
        [
            (tasks.latest[a:b] - tasks.earliest[a:b]).sum() if a < b else 0
            for a, b in zip(tasks.tasks_from, tasks.tasks_from[1:], strict=False)
        ]
    )
    best: tuple[int, Numbers, Numbers] | None = None
    for key in (-of_process[movable], slack[movable], movable):
        starts, usage = planning.starts.copy(), planning.usage.copy()
        target = np.maximum(planning.bounds, planning.peaks)
        insert_all(tasks, movable[np.argsort(key, kind="stable")].astype(np.int64), starts, usage, target)
        cost = int((usage.max(axis=1) * tasks.cost).sum())
        if best is None or cost < best[0]:
            best = cost, starts, usage
    assert best is not None
    planning.starts, planning.usage = best[1], best[2]


def lower(planning: Planning, rounds: int, seed: int, limit: float = math.inf) -> float:
    """Repair towards lower targets: in turn for each resource alone, and for all at once. Steps shrink after failures.

    No round begins after `limit` deterministic seconds. Returns the deterministic seconds spent.
    """
    tasks, count = planning.tasks, len(planning.bounds)
    movable = planning.movable[tasks.process]
    steps = min(STEPS * int(movable.sum()) // len(movable), STEPS_A_TASK * int(movable.sum()))
    open_from, opened = open_by_tick(planning)
    shares = np.full(count + 1, 0.5)
    failures = np.zeros(count + 1, np.int64)
    work = np.zeros(1, np.int64)
    for n in range(rounds):
        peak = planning.peaks
        excess = peak - planning.bounds
        which = n % (count + 1)
        if not (excess * tasks.cost).any() or work[0] >= limit * WORK or failures.min() >= 3:
            break
        step = np.ceil(shares[which] * excess).astype(np.int64)
        if which < count:
            step[np.arange(count) != which] = 0
        step[tasks.cost == 0] = 0
        if not step.any() or failures[which] >= 3:
            failures[which] += 1
            continue
        starts, usage = planning.starts.copy(), planning.usage.copy()
        left = repair(tasks, starts, usage, peak - step, open_from, opened, steps, seed * ROUNDS + n + 1, HEAT, work)
        new = usage.max(axis=1)
        if int(((new - peak) * tasks.cost).sum()) < 0:
            planning.starts, planning.usage = starts, usage
            failures[:] = 0
        if left:
            shares[which] /= 2
            failures[which] += step.max() <= 1
        else:
            shares[which] = min(shares[which] * 1.5, 1.0)
    return int(work[0]) / WORK


def open_by_tick(planning: Planning) -> tuple[Numbers, Numbers]:
    """For each tick, the movable tasks that may be active then, in the form that `repair` needs."""
    tasks = planning.tasks
    ends = tasks.latest + tasks.duration
    spans = np.where((tasks.duration > 0) & (planning.movable[tasks.process] > 0), ends - tasks.earliest, 0)
    rows = np.repeat(np.arange(len(spans)), spans)
    ticks = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans) + tasks.earliest[rows]
    order = np.argsort(ticks, kind="stable")
    return np.searchsorted(ticks[order], np.arange(planning.horizon + 1)).astype(np.int64), rows[order].astype(np.int64)
