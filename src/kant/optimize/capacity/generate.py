"""Random instances from a seed: processes of tasks with local precedence, like workflows of a cluster."""

from __future__ import annotations

import random

from kant.model.errors import InputError
from kant.optimize.capacity.instance import Instance, Process, ProcessTask, Resource

PER_PROCESS = 20
SLACK = 2
LOOK_BACK, LINK = 6, 0.3
"""A task depends on each of the LOOK_BACK tasks before it with the probability LINK."""


def generate(tasks: int, resources: int = 4, seed: int = 0) -> Instance:
    """About `tasks` tasks in processes of about 20. The deadline of a process allows twice its longest path.

    Durations and demands are from 1 to 10, a task uses a resource with probability 0.6, and costs are from 1 to 5.
    """
    if not 1 <= tasks <= 100_000 or not 1 <= resources <= 64:
        raise InputError("generate", "from 1 to 100,000 tasks and from 1 to 64 resources", (tasks, resources))
    rng = random.Random(seed)
    names = [f"r{k}" for k in range(resources)]
    costs = tuple(Resource(name, rng.randint(1, 5)) for name in names)
    drawn: list[tuple[tuple[ProcessTask, ...], int]] = []
    left = tasks
    while left > 0:
        count = min(left, rng.randint(PER_PROCESS * 6 // 10, PER_PROCESS * 14 // 10))
        left -= count
        made: list[ProcessTask] = []
        ends: list[int] = []
        for i in range(count):
            after = [j for j in range(max(0, i - LOOK_BACK), i) if rng.random() < LINK]
            demand = {name: rng.randint(1, 10) for name in names if rng.random() < 0.6}
            made.append(ProcessTask(f"t{i}", rng.randint(1, 10), demand, tuple(f"t{j}" for j in after)))
            ends.append(max((ends[j] for j in after), default=0) + made[-1].duration)
        drawn.append((tuple(made), max(ends)))
    horizon = max(longest for _, longest in drawn) * SLACK
    processes = []
    for p, (made_tasks, longest) in enumerate(drawn):
        release = rng.randint(0, horizon - SLACK * longest)
        processes.append(Process(f"p{p}", release, release + SLACK * longest, made_tasks))
    return Instance(costs, tuple(processes))
