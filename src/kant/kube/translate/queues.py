"""Queue objects as queues of the model."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from kant.kube.objects.quantity import Quantity, mib, milli
from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError
from kant.model.tenant import Budget, Queue, QueueConfig, Quota, validated
from kant.model.units import parse_duration


class QuotaSpec(View, frozen=True):
    resource: str = "gpu"
    model: str = ""
    nominal: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None
    user_limit: Quantity | None = None


class BudgetSpec(View, frozen=True):
    hard: Quantity | None = None
    soft: Quantity | None = None
    user_hard: Quantity | None = None
    user_soft: Quantity | None = None


class QueueSpec(View, frozen=True):
    parent: str = ""
    weight: int = 1
    isolated: bool = False
    state: str = "open"
    min_run: str = ""
    node_wait: str = ""
    user_queues: bool = False
    max_time: str = ""
    budget: BudgetSpec | None = None
    quotas: tuple[QuotaSpec, ...] = ()
    fallback: str = "listed"


def queue_of(found: Unstructured) -> Queue:
    """Return the object as a queue of the model. Raises InputError."""
    spec: QueueSpec = decoded(found, QueueSpec)
    place = about(found)
    queue = Queue(
        name=found.metadata.name,
        parent=spec.parent,
        weight=spec.weight,
        isolated=spec.isolated,
        state=spec.state,  # type: ignore[arg-type]  # `validated` below knows the words
        min_run=parse_duration(spec.min_run, f"{place}, spec.minRun") if spec.min_run else 0,
        node_wait=parse_duration(spec.node_wait, f"{place}, spec.nodeWait") if spec.node_wait else 0,
        quotas=tuple(_quota(one, f"{place}, spec.quotas[{number}]") for number, one in enumerate(spec.quotas)),
        fallback=spec.fallback,  # type: ignore[arg-type]
        user_queues=spec.user_queues,
        max_time=parse_duration(spec.max_time, f"{place}, spec.maxTime") if spec.max_time else 0,
        budget=_budget(spec.budget, f"{place}, spec.budget") if spec.budget is not None else None,
    )
    validated(QueueConfig((replace(queue, parent=""),)), "spec")
    return queue


def _budget(budget: BudgetSpec, where: str) -> Budget:
    def hours(field: str, value: Quantity | None) -> int:
        return -1 if value is None else milli(value, f"{where}.{field}", up=False)

    return Budget(
        hours("hard", budget.hard), hours("soft", budget.soft),
        hours("userHard", budget.user_hard), hours("userSoft", budget.user_soft),
    )  # fmt: skip


def _quota(quota: QuotaSpec, where: str) -> Quota:
    amount = mib if quota.resource == "memory" else milli

    def limit(field: str, value: Quantity | None) -> int:
        return -1 if value is None else amount(value, f"{where}.{field}", up=False)

    return Quota(
        quota.resource,  # type: ignore[arg-type]
        quota.model,
        amount(quota.nominal, f"{where}.nominal", up=False),
        limit("borrowingLimit", quota.borrowing_limit),
        limit("lendingLimit", quota.lending_limit),
        limit("userLimit", quota.user_limit),
    )


def queue_config_of(objects: Iterable[Unstructured]) -> tuple[QueueConfig, dict[str, str]]:
    """Return all queues by name, and the errors in some.

    A malformed one becomes a root that starts nothing, and its children move to the queue above it. One with an unknown
    parent, or on a cycle of parents, starts nothing until that is fixed. All others are as they say.
    """
    queues: dict[str, Queue] = {}
    wrong: dict[str, str] = {}
    above: dict[str, str] = {}  # the parents of malformed queues, as far as they can be read
    for found in sorted(objects, key=lambda one: one.metadata.name):
        name = found.metadata.name
        try:
            queues[name] = queue_of(found)
        except InputError as error:
            wrong[name] = str(error)
            queues[name] = Queue(name, state="hold")
            above[name] = _parent(found)
    for name in [name for name in queues if name not in wrong]:
        queue = queues[name]
        if queue.parent in above:
            grand, passed = queue.parent, set()
            while grand in above and grand not in passed:
                passed.add(grand)
                grand = above[grand]
            grand = grand if grand in queues and grand not in above and grand != name else ""
            queues[name] = replace(queue, parent=grand)
            wrong[name] = _wrong_parent(queue, "a queue that is not malformed")
        elif queue.parent and queue.parent not in queues:
            queues[name] = _held(queue)
            wrong[name] = _wrong_parent(queue, "the name of a queue")
    for name in _on_cycles(queues):
        wrong[name] = _wrong_parent(queues[name], "a queue that is not below it")
        queues[name] = _held(queues[name])
    return validated(QueueConfig(tuple(queues.values())), "queues"), wrong


def _wrong_parent(queue: Queue, expected: str) -> str:
    return str(InputError(f"Queue {queue.name}, spec.parent", expected, queue.parent))


def _held(queue: Queue) -> Queue:
    """Return the queue as a root of its own that starts nothing."""
    return replace(queue, parent="", state="stop" if queue.state == "stop" else "hold")


def _parent(found: Unstructured) -> str:
    try:
        spec = msgspec.json.decode(found.spec)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    parent = spec.get("parent", "") if isinstance(spec, dict) else ""
    return parent if isinstance(parent, str) else ""


def _on_cycles(queues: dict[str, Queue]) -> list[str]:
    """Return the queues on a cycle of parents."""
    found = []
    for name in queues:
        above, steps = queues[name].parent, 0
        while above and above != name and steps <= len(queues):
            above, steps = queues[above].parent, steps + 1
        if above == name:
            found.append(name)
    return found
