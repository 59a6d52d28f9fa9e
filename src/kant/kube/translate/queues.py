"""Turns Queue objects into queues of the core's model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from kant.kube.objects.quantity import Quantity, mib, milli
from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError
from kant.model.tenant import Budget, Queue, QueueConfig, Quota, validated
from kant.model.units import parse_duration

TIMES = ("min_run", "node_wait", "max_time")
"""The fields of a queue that are durations."""

AMOUNTS = {*Budget.__struct_fields__, *Quota.__struct_fields__} - {"resource", "model"}
"""The fields of budgets and quotas that are amounts."""


class _Written(View, frozen=True):
    """The fields of a spec that have another form in objects than in the model."""

    min_run: str = ""
    node_wait: str = ""
    max_time: str = ""
    budget: dict[str, Quantity | None] | None = None
    quotas: tuple[dict[str, Quantity | None], ...] = ()


def queue_of(found: Unstructured) -> Queue:
    """Return an object as a queue of the model; the object has the same fields, in camel case. Raises InputError."""
    place = f"{about(found)}, spec"
    written: _Written = decoded(found, _Written)
    said = _named(decoded(found, dict[str, Any])) | {"name": found.metadata.name}
    for field in TIMES:
        text = getattr(written, field)
        said[field] = parse_duration(text, f"{place}.{written_name(field)}") if text else 0
    if written.budget is not None:
        said["budget"] = _amounts(written.budget, f"{place}.budget")
    said["quotas"] = [_amounts(one, f"{place}.quotas[{at}]") for at, one in enumerate(written.quotas)]
    try:
        queue = msgspec.convert(said, Queue)
    except msgspec.ValidationError as error:
        raise InputError(place, f"fields of the right types ({error})") from None
    validated(QueueConfig((replace(queue, parent=""),)), "spec")
    return queue


def _amounts(said: dict[str, Quantity | None], where: str) -> dict[str, Any]:
    """Return a quota or a budget with the field names and amounts of the model."""
    amount, found = mib if said.get("resource") == "memory" else milli, _named(said)
    for field in AMOUNTS & found.keys():
        value = found.pop(field)
        if value is not None:
            found[field] = amount(value, f"{where}.{written_name(field)}", up=False)
    return found


def _named(said: dict[str, Any]) -> dict[str, Any]:
    """Return the fields under their names in the model, which are in snake case."""
    return {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in said.items()}


def written_name(field: str) -> str:
    """Return the name in objects, in camel case, of a field of the model."""
    first, *rest = field.split("_")
    return first + "".join(map(str.capitalize, rest))


def queue_config_of(objects: Iterable[Unstructured]) -> tuple[QueueConfig, dict[str, str]]:
    """Return all queues in the order of their names, and the errors by the name of the queue.

    A malformed queue becomes a root that starts nothing, and its children move to the queue above it. A queue with an
    unknown parent, or on a cycle of parents, starts nothing until the parents are corrected.
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
            wrong[name] = _wrong_parent(queue, "a queue with a valid spec")
        elif queue.parent and queue.parent not in queues:
            queues[name] = _held(queue)
            wrong[name] = _wrong_parent(queue, "the name of another queue")
    for name in _on_cycles(queues):
        wrong[name] = _wrong_parent(queues[name], "a queue that is not below this one")
        queues[name] = _held(queues[name])
    return validated(QueueConfig(tuple(queues.values())), "queues"), wrong


def _wrong_parent(queue: Queue, expected: str) -> str:
    return str(InputError(f"Queue {queue.name}, spec.parent", expected, queue.parent))


def _held(queue: Queue) -> Queue:
    """Return the queue as a root that starts nothing."""
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
