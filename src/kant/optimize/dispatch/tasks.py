"""Short tasks and the machines that run them: drawn from published statistics, or read from a file of rows.

The machines are the 100 of Dodoor's evaluation (arXiv 2510.12889): four types of CloudLab, with the slots of the
paper's template. The two mixes of tasks are redrawn from the paper's description. Virtual machines have the shapes of a
public cloud; several identical ones arrive at once, and none runs longer than a cap. Functions are eight of
FunctionBench in three sizes, whose cores and durations depend on the type of machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kant.model.errors import InputError
from kant.toml_file import read_text

Ints = NDArray[np.int64]
MS = 1_000
MOST = 1_000_000
MOST_MS = 10**9


@dataclass(frozen=True, slots=True)
class MachineType:
    """`count` machines of one type: cores, MiB and slots. A slot runs one task at a time."""

    name: str
    count: int
    cores: int
    memory: int
    slots: int


MACHINES = (
    MachineType("m510", 40, 8, 64 * 1024, 3),
    MachineType("xl170", 25, 10, 64 * 1024, 3),
    MachineType("c6525-25g", 18, 16, 128 * 1024, 5),
    MachineType("c6620", 17, 28, 128 * 1024, 8),
)
CORES = sum(each.count * each.cores for each in MACHINES)


@dataclass(frozen=True, slots=True)
class TaskStream:
    """Tasks in the order of their arrival, in microseconds.

    `needs` has a row per task: thousandths of cores on each type of machine, then MiB; `times` has its durations.
    """

    arrivals: Ints
    needs: Ints
    times: Ints

    def at_load(self, load: float) -> TaskStream:
        """The same tasks, with arrivals scaled so that they request this share of all cores while they arrive. A task's
        request is averaged over the machine types, weighted by their cores."""
        if not 0 < load <= 10:
            raise InputError("the load", "a share of all cores above 0, at most 10", load)
        weights = np.array([each.count * each.cores for each in MACHINES]) / CORES
        work = float((self.needs[:, :-1] * self.times / 1000 @ weights).sum())
        last = float(self.arrivals[-1])
        if not last:
            raise InputError("the tasks", "arrivals at different times", "one instant")
        return replace(self, arrivals=np.round(self.arrivals * (work / (load * CORES) / last)).astype(np.int64))


def machines() -> tuple[Ints, Ints]:
    """The type of each machine, and its cores (thousandths), memory and slots."""
    kinds = np.repeat(np.arange(len(MACHINES)), [each.count for each in MACHINES])
    sizes = np.array([(1000 * each.cores, each.memory, each.slots) for each in MACHINES], np.int64)
    return kinds.astype(np.int64), sizes[kinds]


SHAPES = ((420, 1400), (840, 2800), (1000, 520), (1000, 2450), (1000, 5600), (2000, 2800), (2000, 4900),
          (2000, 11200), (4000, 5600), (4000, 9800), (4000, 19600), (8000, 19600))  # fmt: skip
"""The shapes of virtual machines, all of which fit on the smallest machine: thousandths of cores, and MiB."""
SHAPE_WEIGHTS = (2, 2, 8, 24, 12, 4, 18, 12, 3, 9, 4, 2)

FUNCTIONS = (
    # cores and relative duration on each type of machine; MiB and milliseconds on an m510, in three sizes
    ("float", (1, 2, 1, 1), (1.0, 0.7, 0.7, 0.6), (8, 8, 8), (100, 800, 5_000)),
    ("linpack", (4, 5, 8, 14), (1.0, 0.75, 0.9, 0.5), (30, 110, 325), (180, 560, 2_600)),
    ("matmul", (4, 5, 8, 14), (1.0, 0.6, 0.5, 0.4), (60, 160, 1_770), (240, 640, 14_000)),
    ("rendering", (2, 2, 2, 2), (1.0, 0.75, 0.75, 0.45), (38, 300, 2_280), (550, 5_500, 108_000)),
    ("aes", (1, 1, 1, 1), (1.0, 0.7, 0.7, 0.6), (10, 10, 11), (80, 390, 12_000)),
    ("training", (4, 5, 8, 14), (1.0, 0.75, 0.7, 0.5), (210, 410, 770), (1_500, 4_000, 12_000)),
    ("prediction", (2, 2, 2, 2), (1.0, 0.75, 0.75, 0.5), (100, 150, 250), (300, 900, 3_000)),
    ("names", (1, 1, 1, 1), (1.0, 0.75, 0.75, 0.5), (150, 150, 150), (400, 1_200, 5_000)),
)


def draw_machines(count: int, seed: int, cap_s: float) -> TaskStream:
    """Virtual machines that run for at most `cap_s` seconds: one to twelve equal ones at once, as in deployments."""
    rng = np.random.default_rng((seed, 1))
    groups = np.repeat(np.arange(count), rng.integers(1, 13, count))[:count]
    weights = np.array(SHAPE_WEIGHTS) / sum(SHAPE_WEIGHTS)
    shapes = np.array(SHAPES)[rng.choice(len(SHAPES), count, p=weights)][groups]
    of_group = cap_s * 1e6 * np.where(rng.random(count) < 0.25, rng.random(count) * 0.1, rng.random(count))[groups]
    times = np.maximum(of_group * (1 - 0.1 * rng.random(count)), MS).astype(np.int64)
    return _tasks(rng, shapes[:, :1].repeat(len(MACHINES), 1), shapes[:, 1], times[:, None].repeat(len(MACHINES), 1))


def draw_functions(count: int, seed: int, sizes: int = 1) -> TaskStream:
    """Functions with equal probability, in the smallest `sizes` of three sizes."""
    rng = np.random.default_rng((seed, 2))
    which, size = rng.integers(0, len(FUNCTIONS), count), rng.integers(0, sizes, count)
    cores = np.array([1000 * np.array(each[1]) for each in FUNCTIONS])[which]
    speed = np.array([each[2] for each in FUNCTIONS])[which]
    memory = np.array([each[3] for each in FUNCTIONS])[which, size]
    base = np.array([each[4] for each in FUNCTIONS])[which, size] * rng.uniform(0.9, 1.1, count)
    return _tasks(rng, cores, memory, np.maximum(base[:, None] * speed * MS, MS).astype(np.int64))


def _tasks(rng: np.random.Generator, cores: Ints, memory: Ints, times: Ints) -> TaskStream:
    arrivals = np.cumsum(rng.exponential(1e5, len(memory))).astype(np.int64)
    return TaskStream(arrivals - arrivals[0], np.column_stack((cores, memory)).astype(np.int64), times)


def read_tasks(path: Path) -> TaskStream:
    """The tasks of a file without a header: id, cores, MiB, disk, milliseconds, start in milliseconds, type, and more.
    The disk is ignored. Raises InputError with the line."""
    rows = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if text.strip():
            rows.append(_row(f"{path}, line {line}", text.split(",")))
    if len(rows) < 2:
        raise InputError(str(path), "two rows or more", len(rows))
    if len(rows) > MOST:
        raise InputError(str(path), f"at most {MOST:,} rows", len(rows))
    table = np.array(sorted(rows, key=lambda row: row[3]), np.int64)
    kinds = len(MACHINES)
    needs = np.column_stack((table[:, :1].repeat(kinds, 1), table[:, 1]))
    return TaskStream((table[:, 3] - table[0, 3]) * MS, needs, table[:, 2:3].repeat(kinds, 1) * MS)


def _row(where: str, cells: list[str]) -> tuple[int, int, int, int]:
    if len(cells) < 7:
        raise InputError(where, "id,cores,memMB,disk,duration ms,start ms,type", ",".join(cells))
    found = []
    least = MACHINES[0]
    for name, text, low, high in (
        ("cores", cells[1], 0.001, least.cores),
        ("memMB", cells[2], 0, least.memory),
        ("duration", cells[4], 1, MOST_MS),
        ("start", cells[5], 0, MOST_MS),
    ):
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise InputError(f"{where}, {name}", f"a number from {low:g} to {high:,}", text)
        found.append(value)
    return round(found[0] * 1000), round(found[1]), round(found[2]), round(found[3])
