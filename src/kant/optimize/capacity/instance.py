"""An instance of capacity planning, and a check of plans that does not depend on how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kant.model.errors import InputError

MOST = 1 << 20
"""The maximum time, demand and cost. It keeps a plan's cost far below 2^63."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of which the peak use is reserved. `cost` is the cost of one reserved unit."""

    name: str
    cost: int = 1


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """A task of `duration` ticks that uses `demand` units of resources, after the tasks `after` of its process."""

    id: str
    duration: int
    demand: Mapping[str, int] = field(default_factory=dict)
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A pipeline: all of its tasks run between `release` and `deadline`, in ticks."""

    id: str
    release: int
    deadline: int
    tasks: tuple[ProcessTask, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """Processes and the resources that they share. Raises InputError if no plan can exist."""

    resources: tuple[Resource, ...]
    processes: tuple[Process, ...]
    tick_us: int = 0
    """Microseconds in a tick; 0 if ticks are plain numbers."""

    def __post_init__(self) -> None:
        names = [resource.name for resource in self.resources]
        if not names or len(set(names)) < len(names):
            raise InputError("resources", "at least one, each with a name of its own", names)
        for resource in self.resources:
            _within(f"resource {resource.name}, cost", resource.cost, 0)
        if not any(process.tasks for process in self.processes):
            raise InputError("processes", "at least one task")
        seen: set[str] = set()
        for process in self.processes:
            where = f"process {process.id}"
            if process.id in seen:
                raise InputError(where, "a name that no other process has")
            seen.add(process.id)
            _within(f"{where}, release", process.release, 0)
            _within(f"{where}, deadline", process.deadline, 1)
            self._check(process, set(names), where)

    @staticmethod
    def _check(process: Process, names: set[str], where: str) -> None:
        known: set[str] = set()
        for task in process.tasks:
            if task.id in known:
                raise InputError(f"{where}, task {task.id}", "a name that no other task of the process has")
            known.add(task.id)
            _within(f"{where}, task {task.id}, duration", task.duration, 0)
            for name, amount in task.demand.items():
                if name not in names:
                    raise InputError(f"{where}, task {task.id}, demand", f"resources of {sorted(names)}", name)
                _within(f"{where}, task {task.id}, demand of {name}", amount, 0)
        ends: dict[str, int] = {}
        for task in in_order(process, where):
            ends[task.id] = max((ends[name] for name in task.after), default=process.release) + task.duration
        if process.tasks and max(ends.values()) > process.deadline:
            raise InputError(
                f"{where}, deadline", f"at least {max(ends.values())}, when its longest path ends", process.deadline
            )


def _within(where: str, value: int, least: int) -> None:
    if not least <= value <= MOST:
        raise InputError(where, f"a whole number from {least} to {MOST:,}", value)


def in_order(process: Process, where: str = "process") -> list[ProcessTask]:
    """The tasks of a process in topological order. Raises InputError if there is no such order."""
    by_id = {task.id: task for task in process.tasks}
    waits = {task.id: set(task.after) for task in process.tasks}
    for task in process.tasks:
        for name in task.after:
            if name not in by_id:
                raise InputError(f"{where}, task {task.id}, after", "a task of the same process", name)
    followers: dict[str, list[str]] = {task.id: [] for task in process.tasks}
    for task in process.tasks:
        for name in sorted(waits[task.id]):
            followers[name].append(task.id)
    ready = [task.id for task in process.tasks if not waits[task.id]]
    order: list[ProcessTask] = []
    for name in ready:  # grows during iteration
        order.append(by_id[name])
        for follower in followers[name]:
            waits[follower].discard(name)
            if not waits[follower]:
                ready.append(follower)
    if len(order) < len(process.tasks):
        circle = sorted(name for name, left in waits.items() if left)
        raise InputError(f"{where}, after", "tasks that do not wait for each other in a cycle", ", ".join(circle))
    return order


Starts = Mapping[tuple[str, str], int]
"""The start of each task, by the ids of process and task."""


def peaks(instance: Instance, starts: Starts, begin: int = 0, end: int | None = None) -> dict[str, int]:
    """The largest simultaneous use of each resource from `begin` until before `end` (None: the end of all tasks)."""
    changes: dict[str, dict[int, int]] = {resource.name: {} for resource in instance.resources}
    for process in instance.processes:
        for task in process.tasks:
            at = starts[process.id, task.id]
            first, over = max(at, begin), at + task.duration
            last = over if end is None else min(over, end)
            for name, amount in task.demand.items() if first < last else ():
                of = changes[name]
                of[first] = of.get(first, 0) + amount
                of[last] = of.get(last, 0) - amount
    found = {}
    for name, of in changes.items():
        level = most = 0
        for at in sorted(of):
            level += of[at]
            most = max(most, level)
        found[name] = most
    return found


def cost_of(instance: Instance, peak: Mapping[str, int]) -> int:
    """The sum of peak x cost over the resources."""
    return sum(resource.cost * peak[resource.name] for resource in instance.resources)


def unchanged(old: Instance, new: Instance) -> set[str]:
    """The processes that are equal in both instances."""
    before = {process.id: process for process in old.processes}
    return {process.id for process in new.processes if before.get(process.id) == process}


def flat(instance: Instance) -> Sequence[tuple[Process, ProcessTask]]:
    """All tasks, process by process, in topological order."""
    return [(process, task) for process in instance.processes for task in in_order(process)]
