"""The orders `fifo`, `sjf` and `drf`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.core.reference.world import LiveJob, ReferenceWorld

from kant.model.job import Job
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU
from kant.queueing.order import Order
from kant.queueing.orders.sjf import Sjf


def rank(world: ReferenceWorld, order: Order, live: LiveJob, running: Sequence[Job]) -> tuple[object, ...]:
    """The sort key of a waiting job, smallest first. `running` are the jobs that run under the plan so far."""
    job = live.job
    shares = share(world, job.queue, running) if order.shares else ()
    if order.shares:
        shares = (float(world.is_over_budget(job.queue, None, "soft")), *shares)
    key = job.submit if not isinstance(order, Sjf) else FOREVER if job.estimate < 0 else job.estimate
    return shares, world.is_over_budget(job.queue, job.user, "soft"), -job.priority, key, live.number


def share(world: ReferenceWorld, queue: str, running: Sequence[Job]) -> tuple[float, ...]:
    """Dominant shares, divided by weights, of the queues from the root down (A. Ghodsi et al., NSDI 2011)."""
    config = world.queues
    place = {one.name: at for at, one in enumerate(config.queues)}
    weight = {one.name: one.weight for one in config.queues}
    nodes = [node for node in world.nodes if world.closed.get(node.name) != NodeStatus.FAILED]
    limited = [node for node in nodes if node.cpu < FOREVER and node.memory < FOREVER and node.gpus]
    capacity = (
        max(sum(GPU * node.gpus for node in nodes if node.name not in world.closed), 1),
        sum(node.cpu for node in limited),
        sum(node.memory for node in limited),
    )
    found: list[float] = []
    for name in reversed(config.lineage(queue)) if queue in place else ():
        inside = [job for job in running if job.queue in place and name in config.lineage(job.queue)]
        found += (dominant(inside, capacity) / weight[name], place[name])
    if queue not in place or any(one.parent == queue for one in config.queues):
        found += (dominant([job for job in running if job.queue == queue], capacity), -1 - world.named[queue])
    return tuple(found)


def dominant(jobs: Sequence[Job], capacity: tuple[int, int, int]) -> float:
    """The largest share of GPUs, CPU or memory that these jobs request."""
    demands = [(group.count, group.demand) for job in jobs for group in job.groups]
    held = (
        sum(count * demand.charged_milli for count, demand in demands),
        sum(count * demand.cpu for count, demand in demands),
        sum(count * demand.memory for count, demand in demands),
    )
    return max(amount / has for amount, has in zip(held, capacity, strict=True) if has > 0)
