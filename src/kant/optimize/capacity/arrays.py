"""An instance as arrays, with each task after its predecessors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.optimize.capacity.instance import Instance, flat

Numbers = NDArray[np.int64]


class TaskArrays(NamedTuple):
    """The input of the compiled functions. Times are ticks since the first release."""

    duration: Numbers
    demand: Numbers  # [task, resource]
    process: Numbers
    earliest: Numbers  # the earliest and latest start that precedence and release allow
    latest: Numbers
    before_from: Numbers  # the predecessors of task i are before[before_from[i]:before_from[i + 1]]
    before: Numbers
    after_from: Numbers  # likewise the successors of task i
    after: Numbers
    tasks_from: Numbers  # the tasks of process p are tasks_from[p] to tasks_from[p + 1]
    cost: Numbers  # by resource


def tasks_of(instance: Instance) -> tuple[TaskArrays, int, int]:
    """The arrays, the first release, and the number of ticks from the first release to the last deadline."""
    rows = flat(instance)
    n = len(rows)
    zero = min(process.release for process, _ in rows)
    column = {resource.name: k for k, resource in enumerate(instance.resources)}
    row_of = {(process.id, task.id): i for i, (process, task) in enumerate(rows)}
    numbers = {process.id: p for p, process in enumerate(instance.processes)}
    duration = np.array([task.duration for _, task in rows], np.int64)
    demand = np.zeros((n, len(column)), np.int64)
    before: list[list[int]] = [[] for _ in rows]
    after: list[list[int]] = [[] for _ in rows]
    for i, (process, task) in enumerate(rows):
        if task.duration:
            for name, amount in task.demand.items():
                demand[i, column[name]] = amount
        before[i] = sorted({row_of[process.id, name] for name in task.after})
        for j in before[i]:
            after[j].append(i)
    earliest = np.zeros(n, np.int64)
    latest = np.zeros(n, np.int64)
    for i, (process, _) in enumerate(rows):
        earliest[i] = max((earliest[j] + duration[j] for j in before[i]), default=process.release - zero)
    for i in reversed(range(n)):
        latest[i] = min((latest[j] for j in after[i]), default=rows[i][0].deadline - zero) - duration[i]
    number = np.array([numbers[process.id] for process, _ in rows], np.int64)
    tasks_from = np.searchsorted(number, np.arange(len(instance.processes) + 1)).astype(np.int64)
    tasks = TaskArrays(
        duration, demand, number, earliest, latest, *_joined(before), *_joined(after), tasks_from,
        np.array([resource.cost for resource in instance.resources], np.int64),
    )  # fmt: skip
    return tasks, zero, max(process.deadline for process, _ in rows) - zero


def _joined(lists: list[list[int]]) -> tuple[Numbers, Numbers]:
    starts = np.zeros(len(lists) + 1, np.int64)
    starts[1:] = np.cumsum([len(each) for each in lists])
    return starts, np.array([j for each in lists for j in each], np.int64)
