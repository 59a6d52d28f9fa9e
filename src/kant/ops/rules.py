"""Rules: what no order may do, whoever gives it, and for each role the limits of one plan.

The rules are checked when a plan is made, and again on the present state when the plan is applied.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from kant.ops import orders as o
from kant.ops.orders import Order, kind_of
from kant.ops.view import JobView, WorldView
from kant.ops.world import OrderFutures, World
from kant.service.roles import Caller, Role, owns

OF_TENANTS = (o.Submit, o.Cancel, o.Hold, o.Release, o.Priority, o.Preempt)
"""The orders that a tenant may give, for its own jobs; the others are for operators."""
FINAL = {
    "cancel": "a cancelled job cannot be restored; its owner may submit it again",
    "preempt": "a stopped run cannot continue; the job waits again",
    "defragment": "moved jobs stay where they are",
}
"""The kinds of orders that cannot be undone, and why."""


class RoleLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a role. If one plan exceeds `jobs`, `gpus`, `nodes`, `gpu_hours` lost or `runs_withdrawn`, a person
    is asked.

    `applies_per_hour` (plans applied) and `gpu_hours_per_hour` (GPU-hours lost) are hard limits.
    """

    jobs: Annotated[int, Meta(ge=0)] = 10
    gpus: Annotated[float, Meta(ge=0)] = 64.0
    nodes: Annotated[int, Meta(ge=0)] = 2
    gpu_hours: Annotated[float, Meta(ge=0)] = 64.0
    applies_per_hour: Annotated[int, Meta(ge=0)] = 60
    gpu_hours_per_hour: Annotated[float, Meta(ge=0)] = 256.0
    runs_withdrawn: Annotated[int, Meta(ge=0)] = 0


class RoleLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of each role."""

    viewer: RoleLimit = RoleLimit(0, 0, 0, 0, 0, 0)
    tenant: RoleLimit = RoleLimit(3, 16, 0, 16, 20, 32, 3)
    operator: RoleLimit = RoleLimit()

    def of(self, role: Role) -> RoleLimit:
        found: RoleLimit = getattr(self, str(role))
        return found


class Violation(Struct, frozen=True, omit_defaults=True):
    """A rule that a plan would break, and the number of the order that breaks it, from 1 (0: all orders together)."""

    rule: str
    sentence: str
    order: int = 0


class Blast(Struct, frozen=True):
    """The blast radius of a plan: the jobs that it names or stops, their GPUs, nodes, and how many jobs wait longer.

    `runs_withdrawn` counts the runs that cannot be restored.
    """

    jobs: list[str] = field(default_factory=list)
    gpus: float = 0.0
    nodes: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    jobs_later: int = 0
    gpu_hours_lost: float = 0.0
    runs_withdrawn: int = 0

    def beyond(self, limit: RoleLimit) -> list[str]:
        """Return the limits that this blast radius exceeds, as texts."""
        pairs = (
            ("jobs", len(self.jobs), limit.jobs),
            ("GPUs", self.gpus, limit.gpus),
            ("nodes", len(self.nodes), limit.nodes),
            ("GPU-hours lost", self.gpu_hours_lost, limit.gpu_hours),
            ("runs cancelled for good", self.runs_withdrawn, limit.runs_withdrawn),
        )
        return [f"{got:g} {what} (up to {most:g} without approval)" for what, got, most in pairs if got > most]


def job_of(order: Order) -> str:
    """The job that an order names; "" if it names none."""
    return str(getattr(order, "job", ""))


def stopped_at_once(view: WorldView, orders: tuple[Order, ...]) -> dict[str, JobView]:
    """Return the running jobs that the orders stop directly, by id."""
    found: dict[str, JobView] = {}
    for order in orders:
        if isinstance(order, o.Cancel | o.Preempt) and order.job in view.jobs and view.jobs[order.job].runs:
            found[order.job] = view.jobs[order.job]
        elif isinstance(order, o.Drain) and order.evict:
            found |= {job.id: job for job in view.on_node(order.node)}
    return found


def blast_of(view: WorldView, orders: tuple[Order, ...], futures: OrderFutures) -> Blast:
    """Compute the blast radius of a plan."""
    touched = stopped_at_once(view, orders)
    touched |= {name: view.jobs[name] for name in futures.stopped if name in view.jobs}
    lost = sum(job.lost_gpu_s for job in touched.values() if job.runs) / 3600
    named = {job_of(order) for order in orders} | {move.rpartition(" to ")[0] for move in futures.moves}
    touched |= {name: view.jobs[name] for name in named & view.jobs.keys()}
    nodes = sorted({order.node for order in orders if isinstance(order, o.Drain)})
    gpus = sum(job.gpus for job in touched.values() if job.runs)
    gpus += sum(node.free for node in view.nodes if node.node in nodes)
    queues = {job.queue for job in touched.values()} | {order.queue for order in orders if isinstance(order, o.Quota)}
    later = futures.answer.get("waits", {}).get("all", {}).get("later", {}).get("jobs", 0)
    ended = sum(
        isinstance(order, o.Cancel) and order.job in view.jobs and view.jobs[order.job].runs for order in orders
    )
    return Blast(sorted(touched), round(gpus, 3), nodes, sorted(queues), later, round(lost, 3), ended)


def violations(view: WorldView, orders: tuple[Order, ...], who: Caller, world: World) -> list[Violation]:
    """Return the violations of rules that the present state shows; `foreseen` returns those that simulations show."""
    found: list[Violation] = []
    seen: set[str] = set()
    for number, order in enumerate(orders, start=1):
        name = job_of(order)
        if kind_of(order) not in world.carries:
            found.append(Violation("world", f"{kind_of(order)} is not supported here", number))
        found += [Violation(*each, number) for each in _of_role(view, order, who, world)]
        found += [Violation("impossible", each, number) for each in _out_of_phase(view, order)]
        if name and name in seen:
            found.append(Violation("once", f"job {name} is already named by an earlier order", number))
        seen.add(name)
        found += [Violation("protected", each, number) for each in _protected(view, order)]
        if isinstance(order, o.Quota):
            found += [Violation("quota", each, number) for each in _quota(view, order, orders)]
    return found


def foreseen(view: WorldView, futures: OrderFutures) -> list[Violation]:
    """Return the violations of rules that the simulated effects of the orders show."""
    if futures.complaint:
        return [Violation("impossible", futures.complaint)]
    found = []
    for name in futures.stopped:
        if name in view.jobs and not view.jobs[name].preemptible:
            found.append(Violation("protected", f"job {name} would be stopped, but is not preemptible"))
    for name in futures.rejected:
        found.append(Violation("quota", f"job {name} could never start: it would be rejected at once"))
    return found


def _of_role(view: WorldView, order: Order, who: Caller, world: World) -> list[tuple[str, str]]:
    if who.role is Role.VIEWER:
        return [("role", f"{who.user} may look and plan, but not give orders")]
    if (why := world.rights(order)) is not None:
        return [("own", why)] if why else []
    if who.role is Role.OPERATOR:
        return []
    if not isinstance(order, OF_TENANTS):
        return [("role", f"only operators may order {kind_of(order)}")]
    if isinstance(order, o.Submit):
        queue, user = order.queue, who.user if not who.queues else ""
    else:
        job = view.jobs.get(order.job)
        if job is None:
            return []
        queue, user = job.queue, job.user
    if owns(who, view.lineage(queue), user):
        return []
    return [("own", f"{who.user} may order {kind_of(order)} only in their own queues, not in {queue}")]


PHASES: dict[type, tuple[str, ...]] = {
    o.Cancel: ("held", "blocked", "waiting", "running"),
    o.Hold: ("blocked", "waiting"),
    o.Release: ("held",),
    o.Priority: ("held", "blocked", "waiting"),
    o.Preempt: ("running",),
}
"""For each kind of order, the phases that its job may have."""


def _out_of_phase(view: WorldView, order: Order) -> list[str]:
    fits = PHASES.get(type(order))
    if fits is None:
        return []
    job = view.jobs.get(job_of(order))
    if job is None:
        return [f"no waiting or running job has the id {job_of(order)}"]
    return [f"job {job.id} is {job.phase}; expected {' or '.join(fits)}"] if job.phase not in fits else []


def _protected(view: WorldView, order: Order) -> list[str]:
    """Return a sentence for each protected running job that the order would stop."""
    stopped = stopped_at_once(view, (order,)).values()
    return [f"job {job.id} is running and not preemptible" for job in stopped if not job.preemptible]


def _quota(view: WorldView, order: o.Quota, orders: tuple[Order, ...]) -> list[str]:
    """Check a quota: in total no more than the GPUs that exist, and at least what the queue's protected jobs hold."""
    model = order.model or "any"
    given = {(each.queue, each.model or "any"): each.gpus for each in orders if isinstance(each, o.Quota)}
    mine = [queue for queue in view.queues if queue.model == model and queue.nominal_gpus is not None]
    before = sum(queue.nominal_gpus or 0.0 for queue in mine)
    after = sum(given.get((queue.queue, queue.model), queue.nominal_gpus or 0.0) for queue in mine)
    there = sum(node.gpus for node in view.nodes)
    found = []
    if after > max(before, there):
        found.append(f"the quotas would add up to {after:g} GPUs, but there are only {there:g}")
    kept = sum(job.gpus for job in view.jobs.values() if job.runs and not job.preemptible and job.queue == order.queue)
    if order.gpus < kept:
        found.append(f"jobs of {order.queue} that are not preemptible hold {kept:g} GPUs, more than the quota")
    return found
