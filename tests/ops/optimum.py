"""The least that a task can cost, by trying every set of a few orders: nobody's cleverness, the oracle's neither.

.venv/bin/python -m tests.ops.optimum start-paper      # what it can be done for, and by which orders
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations, product
from typing import Any

from kant.model.errors import InputError
from kant.ops.bench.task import BenchTask, read_tasks
from kant.ops.bench.verify import cost, judge
from kant.ops.orders import Resume, parse_orders
from kant.ops.view import WorldView
from kant.service.roles import Caller, Role

Orders = tuple[dict[str, Any], ...]
WHO = Caller("search", Role.OPERATOR)


def vocabulary(task: BenchTask, view: WorldView) -> list[dict[str, Any]]:
    """Every order that the task allows, and that could help: in this sequence they are tried together."""
    verify = task.verify

    def may(kind: str, name: str) -> bool:
        return any(fnmatchcase(f"{kind} {name}", pattern) for pattern in verify.may_change)

    found: list[dict[str, Any]] = []
    nodes = [node for node in view.nodes if may("node", node.node) or verify.transactions > 1]
    found += [{"op": "resume", "node": node.node} for node in nodes if node.status != "in service"]
    waiting = [job.id for job in view.jobs.values() if not job.runs and may("job", job.id)]
    found += [{"op": "hold", "job": job} for job in waiting]
    above = sorted({job.priority + 1 for job in view.jobs.values()})
    found += [{"op": "priority", "job": job, "value": value} for job in waiting for value in above]
    free = [node.node for node in nodes if node.status == "in service"]
    found += [{"op": "drain", "node": node, "evict": evict} for node in free for evict in (False, True)]
    found += [{"op": "preempt", "job": job.id} for job in view.jobs.values() if job.runs and job.preemptible]
    if task.ask["want"] == "book":
        asked = {"op": "reserve"} | {key: value for key, value in task.ask.items() if key not in ("want", "by")}
        found = [asked | {"start": f"{hour}h"} for hour in range(49)]
    return found


def at_least(orders: Orders, view: WorldView) -> float:
    """What these orders lose by themselves, whatever follows."""
    lost = {order["job"]: view.jobs[order["job"]].lost_gpu_s for order in orders if order["op"] == "preempt"}
    for order in orders:
        if order.get("evict"):
            lost |= {job.id: job.lost_gpu_s for job in view.on_node(order["node"])}
    return sum(lost.values()) / 3600


def sets_of(task: BenchTask, view: WorldView) -> Iterator[Orders]:
    """The sets of orders that are tried. What is asked for by name is in each of them."""
    assert task.verify.economy is not None
    asked: list[Orders] = [tuple(task.ask.get("orders", ()))]
    every = vocabulary(task, view)
    if task.ask["want"] == "empty" and not task.ask.get("any"):
        named = [
            node.node for node in view.nodes if {node.node, node.leaf} & {task.ask.get("node"), task.ask.get("leaf")}
        ]
        ways = [[{"op": "drain", "node": node, "evict": evict} for evict in (False, True)] for node in named]
        asked = list(product(*ways))
        every = [order for order in every if order["op"] != "drain"]
    for some in asked:
        for size in range(task.verify.economy.orders + 1):
            yield from (more + some for more in combinations(every, size) if more + some)


def optimum(task: BenchTask, most: float = float("inf")) -> tuple[float, Orders]:
    """The least cost, below `most`, of what reaches the goal and keeps the rest of it, and by which orders."""
    economy = task.verify.economy
    assert economy is not None
    before = task.world().view()
    best: tuple[float, Orders] = (most, ())
    for orders in sets_of(task, before):
        named = [order[key] for order in orders for key in ("job", "node") if key in order]
        if len(set(named)) < len(named) or at_least(orders, before) >= best[0]:
            continue
        world = task.world()
        try:
            for order in parse_orders(orders):
                world.carry_out(order, WHO)
            world.settle()
            if task.verify.transactions > 1:  # what was only in the way for a moment
                for order in orders:
                    if order["op"] == "drain" and not order["evict"]:
                        world.carry_out(Resume(order["node"]), WHO)
                world.settle()
        except InputError:
            continue
        paid = cost(economy.of, before, world.view())
        if paid >= best[0]:
            continue
        found = judge(task, before, world, {}, None)
        if not any(found[check] for check in ("goal", "protected", "cancelled", "quotas", "untouched")):
            best = paid, orders
    return best


if __name__ == "__main__":
    for each in read_tasks(*sys.argv[1:]):
        if each.verify.economy is not None:
            print(each.name, each.verify.economy.best, *optimum(each), flush=True)
