"""Mutated end states of a task: what the oracle leaves, and then one thing is different. No verifier knows of these.

.venv/bin/python -m tests.ops.mutants            # how many of them each verifier rejects, and which it lets pass
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kant.model.errors import InputError
from kant.ops.bench.task import BenchTask, read_tasks
from kant.ops.bench.verify import judge
from kant.ops.orders import parse_orders
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import WorldView
from kant.service.roles import Caller, Role

WHO = Caller("mutant", Role.OPERATOR)


def orders_on(view: WorldView) -> Iterator[dict[str, Any]]:
    """One order more, of every kind and on everything that is there."""
    for job in view.jobs.values():
        yield {"op": "cancel", "job": job.id}
        if job.runs:
            yield {"op": "preempt", "job": job.id}
        else:
            yield {"op": "release" if job.phase == "held" else "hold", "job": job.id}
            yield {"op": "priority", "job": job.id, "value": job.priority + 7}
    for node in view.nodes:
        if node.status == "in service":
            yield {"op": "drain", "node": node.node}
            yield {"op": "drain", "node": node.node, "evict": True}
        else:
            yield {"op": "resume", "node": node.node}
    for queue in view.queues:
        if queue.nominal_gpus is not None:
            yield {"op": "quota", "queue": queue.queue, "gpus": queue.nominal_gpus + 4}
            yield {"op": "quota", "queue": queue.queue, "gpus": max(queue.nominal_gpus - 4, 0)}
    yield {"op": "submit", "gpus": 1, "time": "1h", "queue": view.queues[0].queue}
    yield {"op": "reserve", "name": "mutant", "gpus": 2, "time": "1h", "start": "90h"}
    for booked in view.booked:
        yield {"op": "unreserve", "name": booked.name}


def answers_of(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One word of the answer is another, or is not said."""
    for key, value in answer.items():
        yield {name: each for name, each in answer.items() if name != key}
        for other in _others(value):
            yield answer | {key: other}


def _others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 1.05 + 0.5, str(value))
    elif isinstance(value, str):
        yield from (value + "x", "", [value])
    elif isinstance(value, list):
        yield from (value[1:], [*value, "job-x"], ["job-x", *value[1:]])
    elif isinstance(value, dict):
        for key, each in value.items():
            yield {name: one for name, one in value.items() if name != key}
            yield from (value | {key: other} for other in _others(each))


def left(task: BenchTask) -> tuple[WorldView, SimulatedWorld]:
    """The state before, and the world that the oracle leaves."""
    world = task.world()
    before = world.view()
    for orders in task.oracle.plans:
        for order in parse_orders(orders):
            world.carry_out(order, WHO)
        world.settle()
    return before, world


def survivors(task: BenchTask) -> tuple[int, list[Any]]:
    """How many mutants there are, and those that the verifier lets pass. It looks at no audit."""
    before, world = left(task)
    answer, after = task.oracle.answer, world.view()
    count, alive = 0, []
    for order in orders_on(after):
        before, world = left(task)
        try:
            world.carry_out(parse_orders([order])[0], WHO)
        except InputError:
            continue
        world.settle()
        if world.view().facts() == after.facts():
            continue
        count += 1
        if judge(task, before, world, answer, None).passed:
            alive.append(order)
    before, world = left(task)
    for other in answers_of(answer):
        count += 1
        if judge(task, before, world, other, None)["answer"] == []:
            alive.append(other)
    if task.verify.goal:
        count += 1
        if judge(task, before, task.world(), answer, None).passed:
            alive.append("nothing is done")
    return count, alive


if __name__ == "__main__":
    for each in read_tasks(*sys.argv[1:]):
        count, alive = survivors(each)
        print(f"{each.name:20} {count - len(alive):3} of {count:3} rejected", *alive, flush=True)
