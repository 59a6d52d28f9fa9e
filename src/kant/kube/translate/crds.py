"""Our own objects as objects of the model: Queue, Topology, Reservation (scheduling.kant.dev/v1alpha1).

Their schemas are in `manifests/`; the API server rejects most errors there. What gets past it is rejected here, on that
object alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kant.kube.objects.quantity import Quantity, mib, milli
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.levels import Levels, levels_listed, levels_named
from kant.model.errors import InputError
from kant.model.tenant import Budget, Queue, QueueConfig, Quota, validated
from kant.model.units import FOREVER, parse_duration

GROUP, VERSION = "scheduling.kant.dev", "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"
"""Objects are at API/queues, API/topologies and API/reservations; all are cluster-scoped."""


WITHIN = ("", "hbd", "leaf", "spine", "superspine")
"""The levels within one domain of which a reservation may be required."""


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


class LevelSpec(View, frozen=True):
    level: str = ""
    node_label: str = ""


class TopologySpec(View, frozen=True):
    levels: tuple[LevelSpec, ...] = ()


class ReservationSpec(View, frozen=True):
    node_selector: dict[str, str] | None = None
    gpus: int = 0
    within: str = ""
    model: str = ""
    queues: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    reason: str = ""


class ReservedNodes(Struct, frozen=True):
    """Nodes with all of these labels, reserved for some queues (none: closed to all) from `start` to `end`.

    Times are microseconds after time zero, negative before it; `end` is FOREVER where none is given.
    """

    name: str
    selector: dict[str, str]
    queues: tuple[str, ...]
    start: int
    end: int
    reason: str


class BookedGpus(Struct, frozen=True):
    """At least `gpus` GPUs in whole adjacent nodes, for pods that name the reservation.

    They are in one domain of the level `within` (""; anywhere), and of `model` (""; all of any one). Pods of these
    `queues` may name it (none: of all). Times are as in `ReservedNodes`; `created` is when the object was made. `nodes`
    are those that its status names: its previous nodes.
    """

    name: str
    gpus: int
    within: str
    model: str
    queues: tuple[str, ...]
    start: int
    end: int
    created: str
    nodes: tuple[str, ...]


class ReservationStatus(View, frozen=True):
    node_names: tuple[str, ...] = ()


def about(found: Unstructured) -> str:
    return f"{found.kind or 'object'} {found.metadata.name}"


def decoded(found: Unstructured, form: type[Any]) -> Any:
    """Return the spec of an object as `form`. Raises InputError."""
    try:
        return msgspec.json.decode(found.spec, type=form)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{about(found)}, spec", f"fields of their types ({error})") from None


# --- queues ------------------------------------------------------------------------------------------------------


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


# --- topologies and reservations -----------------------------------------------------------------------------------


def levels_of(objects: Iterable[Unstructured]) -> tuple[Levels | None, dict[str, str]]:
    """Return the levels that Topology objects name: ours before those of KAI and Kueue, then by name; and the errors.

    None: no object can be used. All objects but the one in force are among the errors, those of other API groups as
    NAME (GROUP).
    """
    found: Levels | None = None
    wrong: dict[str, str] = {}
    for one in sorted(objects, key=lambda one: (not one.api_version.startswith(GROUP), one.metadata.name)):
        name, group = one.metadata.name, one.api_version.partition("/")[0]
        name = name if group == GROUP else f"{name} ({group})"
        try:
            levels = _levels(one)
        except InputError as error:
            wrong[name] = str(error)
            continue
        if found is None:
            found = levels
        else:
            wrong[name] = str(InputError(about(one), f"one Topology; {found.source} is in force"))
    return found, wrong


def _levels(found: Unstructured) -> Levels:
    spec: TopologySpec = decoded(found, TopologySpec)
    place = f"{about(found)}, spec.levels"
    if not spec.levels or not all(one.node_label for one in spec.levels):
        raise InputError(place, "one or more levels, each with its nodeLabel")
    if found.api_version.startswith(GROUP):
        return levels_named(((one.level, one.node_label) for one in spec.levels), about(found), place)
    return levels_listed((one.node_label for one in spec.levels), about(found), place)


def reservation_of(found: Unstructured, epoch: int = 0) -> ReservedNodes | BookedGpus:
    """Return the reservation, on the clock whose zero is `epoch` (microseconds since 1970). Raises InputError."""
    place, name = f"{about(found)}, spec", found.metadata.name
    spec: ReservationSpec = decoded(found, ReservationSpec)
    if bool(spec.node_selector) == bool(spec.gpus):
        raise InputError(f"{place}.nodeSelector", "one or more labels of nodes, or gpus in its place")
    if spec.gpus < 0 or spec.within not in WITHIN:
        raise InputError(f"{place}.gpus", f"GPUs, and within one of {', '.join(WITHIN[1:])}", spec.within)
    start = microseconds(spec.start, f"{place}.start") - epoch
    end = microseconds(spec.end, f"{place}.end") - epoch if spec.end else FOREVER
    if end <= start:
        raise InputError(f"{place}.end", "a time after start", spec.end)
    if spec.node_selector:
        return ReservedNodes(name, spec.node_selector, spec.queues, start, end, spec.reason)
    try:
        nodes = msgspec.json.decode(found.status, type=ReservationStatus).node_names
    except msgspec.MsgspecError:
        nodes = ()
    created = found.metadata.creation_timestamp
    return BookedGpus(name, spec.gpus, spec.within, spec.model, spec.queues, start, end, created, nodes)
