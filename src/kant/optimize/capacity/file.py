"""Files of capacity planning: Kant's JSON, projects of PSPLIB, and plans.

{"tick": "15m",
 "resources": [{"name": "gpus", "cost": 10}],
 "processes": [{"id": "nightly", "release": "1h", "deadline": "6h", "every": "1d", "times": 7,
                "tasks": [{"id": "prepare", "duration": "30m", "demand": {"gpus": 1}},
                          {"id": "train", "duration": "2h", "demand": {"gpus": 64}, "after": ["prepare"]}]}]}

Without `tick` all times are whole numbers. With `every` a process occurs `times` times, as `nightly.0` and so on.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import msgspec

from kant.model.errors import InputError
from kant.model.units import FOREVER, parse_duration, show_duration
from kant.optimize.capacity.instance import MOST, Instance, Process, ProcessTask, Resource, Starts, in_order, peaks
from kant.optimize.capacity.planning import CapacityPlan
from kant.optimize.instance_file import parse_json, read_json
from kant.toml_file import read_text

Time = int | str

MOST_TASKS = 200_000


class ResourceRow(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of `resources`."""

    name: str
    cost: int = 1


class TaskRow(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of `tasks` of a process."""

    id: str
    duration: Time
    demand: dict[str, int] = {}
    after: list[str] = []


class ProcessRow(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of `processes`."""

    id: str
    deadline: Time
    tasks: list[TaskRow]
    release: Time = 0
    every: Time | None = None
    times: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class InstanceFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    resources: list[ResourceRow]
    processes: list[ProcessRow]
    tick: str | None = None


class StartRow(msgspec.Struct):
    """An entry of `tasks` in a plan."""

    process: str
    task: str
    start: int


class PlanFile(msgspec.Struct):
    """The fields that are read from a plan printed by `kant plan capacity --json`."""

    tasks: list[StartRow]


def read_instance(path: Path, format: str | None = None, deadline: float = 1.0) -> Instance:
    """Read an instance from a file: `json`, or `psplib` with a deadline that is a multiple of its critical path.

    Without a format, the file name decides. Raises InputError that names the file and the error.
    """
    if format is None:
        format = "psplib" if path.suffix in (".sm", ".rcp") else "json"
    if format not in ("json", "psplib"):
        raise InputError("--format", "json or psplib", format)
    text = read_text(path)
    try:
        return _from_json(text) if format == "json" else _from_psplib(text, deadline)
    except InputError as error:
        raise InputError(f"{path}, {error.where}", error.expected, error.got) from None


def read_plan(path: Path) -> Starts:
    """The starts of a plan that was printed with --json."""
    plan = read_json(path, PlanFile)
    return {(row.process, row.task): row.start for row in plan.tasks}


def instance_json(instance: Instance) -> str:
    """The instance as the text of a file."""
    processes = [
        {
            "id": process.id, "release": process.release, "deadline": process.deadline,
            "tasks": [
                {"id": task.id, "duration": task.duration, "demand": dict(task.demand), "after": list(task.after)}
                for task in process.tasks
            ],
        }
        for process in instance.processes
    ]  # fmt: skip
    resources = [{"name": resource.name, "cost": resource.cost} for resource in instance.resources]
    lines = ",\n".join(json.dumps(process) for process in processes)
    return f'{{"resources": {json.dumps(resources)},\n"processes": [\n{lines}\n]}}\n'


def by_day(instance: Instance, plan: CapacityPlan) -> list[dict[str, int]]:
    """The peaks of each day (24 hours, counted from time zero) by resource; empty if ticks are plain numbers."""
    if not instance.tick_us:
        return []
    day = max(parse_duration("1d") // instance.tick_us, 1)
    last = max(process.deadline for process in instance.processes)
    return [peaks(instance, plan.starts, begin, begin + day) for begin in range(0, last, day)]


def _from_json(text: str) -> Instance:
    read = parse_json("JSON", text, InstanceFile)
    tick = parse_duration(read.tick, "tick") if read.tick is not None else 0
    if read.tick is not None and tick <= 0:
        raise InputError("tick", "a duration such as 15m", read.tick)
    if sum(len(row.tasks) * row.times for row in read.processes) > MOST_TASKS:
        raise InputError("processes", f"at most {MOST_TASKS:,} tasks")
    processes = []
    for row in read.processes:
        where = f"process {row.id}"
        tasks = tuple(
            ProcessTask(
                task.id, _ticks(task.duration, tick, f"{where}, task {task.id}, duration", up=True), task.demand,
                tuple(task.after),
            )
            for task in row.tasks
        )  # fmt: skip
        release = _ticks(row.release, tick, f"{where}, release", up=True)
        deadline = _ticks(row.deadline, tick, f"{where}, deadline")
        if row.every is None:
            if row.times != 1:
                raise InputError(f"{where}, times", "1, or `every` as well")
            processes.append(Process(row.id, release, deadline, tasks))
            continue
        every = _ticks(row.every, tick, f"{where}, every")
        for n in range(row.times):
            processes.append(Process(f"{row.id}.{n}", release + n * every, deadline + n * every, tasks))
    resources = tuple(Resource(row.name, row.cost) for row in read.resources)
    return Instance(resources, tuple(processes), tick)


def _ticks(time: Time, tick: int, where: str, up: bool = False) -> int:
    """A time in whole ticks, rounded up or down: callers choose the direction that keeps a plan in ticks valid."""
    if isinstance(time, int) and (time == 0 or not tick):
        return time
    if isinstance(time, int) or not tick:
        raise InputError(where, "a duration such as 1h30m" if tick else "a whole number, as there is no `tick`", time)
    us = parse_duration(time, where)
    ticks = -(-us // tick) if up else us // tick
    if us >= FOREVER or ticks > MOST:
        raise InputError(where, f"at most {MOST:,} ticks of {show_duration(tick)}", time)
    return ticks


def _from_psplib(text: str, factor: float) -> Instance:
    """A project of PSPLIB (R. Kolisch, A. Sprecher, EJOR 96, 1997) as one process. A unit of a peak costs 1."""
    lines = text.splitlines()

    def rows(title: str, skip: int) -> list[tuple[int, list[int]]]:
        k = next((k for k, line in enumerate(lines) if line.startswith(title)), None)
        if k is None:
            raise InputError("the file", f"a section {title}")
        found = []
        for n, line in enumerate(lines[k + 1 + skip :], k + 2 + skip):
            if line.startswith("*") or not line.strip():
                break
            if not re.fullmatch(r"[\s\d]+", line):
                raise InputError(f"line {n}", "whole numbers", line.strip())
            found.append((n, [int(part) for part in line.split()]))
        return found

    followers: dict[int, list[int]] = {}
    for n, numbers in rows("PRECEDENCE RELATIONS", 1):
        if len(numbers) < 3 or numbers[1] != 1 or len(numbers) != 3 + numbers[2]:
            raise InputError(f"line {n}", "a job with one mode and the stated number of successors", numbers)
        followers[numbers[0]] = numbers[3:]
    work: dict[int, tuple[int, list[int]]] = {}
    width = 0
    for n, numbers in rows("REQUESTS/DURATIONS", 2):
        width = width or len(numbers)
        if len(numbers) < 4 or len(numbers) != width or numbers[0] not in followers:
            raise InputError(f"line {n}", "job, mode, duration and a request for each resource", numbers)
        work[numbers[0]] = numbers[2], numbers[3:]
    if set(work) != set(followers):
        raise InputError("REQUESTS/DURATIONS", "every job once", sorted(set(followers) - set(work)))
    before: dict[int, list[str]] = {job: [] for job in work}
    for job, names in followers.items():
        for name in names:
            if name not in before:
                raise InputError(f"job {job}", "successors that the file has", name)
            before[name].append(str(job))
    resources = [f"R{k + 1}" for k in range(width - 3)]
    tasks = tuple(
        ProcessTask(
            str(job),
            duration,
            {name: units for name, units in zip(resources, needs, strict=True) if units},
            tuple(before[job]),
        )
        for job, (duration, needs) in work.items()
    )
    ends: dict[str, int] = {}
    for task in in_order(Process("project", 0, MOST, tasks)):
        ends[task.id] = max((ends[name] for name in task.after), default=0) + task.duration
    if not factor >= 1:
        raise InputError("deadline", "at least 1 critical path", factor)
    deadline = max(int(max(ends.values()) * factor + 1e-9), 1)
    return Instance(tuple(Resource(name) for name in resources), (Process("project", 0, deadline, tasks),))
