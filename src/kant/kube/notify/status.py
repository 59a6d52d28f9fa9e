"""The status of objects of Kant's kinds: what a queue uses, whether it is valid, a reservation's phase and nodes.

A status is written only if it has changed, and every few seconds at most, to leave the API server to bindings.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from kant.cluster.columns import J_QUEUE
from kant.kube.act.effects import Effects
from kant.kube.connect.client import ApiError, FencedError
from kant.kube.objects.quantity import text_of
from kant.kube.objects.times import now_text
from kant.kube.objects.views import Unstructured
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.crds import API, GROUP
from kant.kube.translate.node_sets import NodeSets
from kant.live.core import Core
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.reconcile.bookings import Bookings
    from kant.kube.translate.reservations import BookedGpus, ReservedNodes

PACE = 2.0  # seconds between two passes over all objects
UNSEEN = 10.0  # seconds until a status that its object does not show is written again

Status = dict[str, Any]


class Sources(Protocol):
    """The part of a built state from which the statuses are computed."""

    core: Core

    @property
    def bookings(self) -> Bookings: ...


@dataclass(eq=False)
class Statuses:
    """Writes statuses. `state` returns what they are computed from (None: write nothing). `rounds` yields for each
    Defragmentation its name, status, error and explanation."""

    effects: Effects
    translation: Translation
    state: Callable[[], Sources | None]
    rounds: Callable[[], Iterable[tuple[str, Status, str, str]]] = lambda: ()
    written: int = 0
    _sent: dict[str, tuple[Status, float]] = field(default_factory=dict)

    async def run(self) -> None:
        """Write changed statuses forever."""
        while True:
            await asyncio.sleep(PACE)
            await self.write()

    async def write(self) -> None:
        """Write the statuses that differ from those in their objects. Rejected statuses are tried again next time."""
        loop, state = asyncio.get_running_loop(), self.state()
        if state is None:
            return
        for path, item, wanted in self.wanted(state):
            sent, when = self._sent.get(path, ({}, 0.0))
            body = _with_times(wanted, item)
            if body == _said(item) or (wanted == sent and loop.time() - when < UNSEEN):
                continue
            self._sent[path] = wanted, loop.time()
            try:
                await self.effects.patch(f"{path}/status", {"status": body})
                self.written += 1
            except FencedError:
                return
            except (ApiError, InputError):
                self._sent.pop(path, None)

    def wanted(self, state: Sources) -> Iterable[tuple[str, Unstructured, Status]]:
        """Yield for each of Kant's objects: its path, the object, and its status (the conditions without times)."""
        translation, core = self.translation, state.core
        objects = translation.mirror.objects
        queues = queue_statuses(core) if objects.get("queues") else {}
        reserved = {one.name: one for one in translation.nodes.reserved}
        booked = {one.name: one for one in translation.booked}
        for plural, kind in (("queues", "Queue"), ("topologies", "Topology"), ("reservations", "Reservation")):
            for (_, name), item in list(objects.get(plural, {}).items()):
                if not item.api_version.startswith(GROUP):
                    continue
                wrong, good = translation.complaints.get(f"{kind} {name}", ""), "it is in force"
                status: Status = {"observedGeneration": item.metadata.generation}
                if kind == "Queue":
                    status |= queues.get(name, {})
                elif kind == "Reservation":
                    if name in booked:
                        wrong = wrong or state.bookings.troubles.get(name, "")
                        status |= booking_status(booked[name], state.bookings.places.get(name, ()), core.now)
                    else:
                        status |= reservation_status(reserved.get(name), translation.eligible.node_sets, core.now)
                        good = good if status.get("nodes") else "no node has these labels"
                yield f"{API}/{plural}/{name}", item, status | {"conditions": [_ready(item, wrong, good)]}
        for name, status, wrong, good in self.rounds():
            if (own := self.translation.mirror.named("defragmentations", "", name)) is not None:
                status = {"observedGeneration": own.metadata.generation, **status}
                yield f"{API}/defragmentations/{name}", own, status | {"conditions": [_ready(own, wrong, good)]}


def _ready(item: Unstructured, wrong: str, good: str) -> Status:
    """Return the condition Ready without lastTransitionTime: False with the error `wrong`, else True with `good`."""
    return {
        "type": "Ready",
        "status": "False" if wrong else "True",
        "observedGeneration": item.metadata.generation,
        "reason": "Refused" if wrong else "Accepted",
        "message": wrong or good,
    }


def queue_statuses(core: Core) -> dict[str, Status]:
    """Return for each queue, with the queues below it, how many jobs wait and run, and which resources they hold."""
    state = core.state
    tree, quota_usage = state.quota_usage.tree, state.quota_usage
    if tree is None:
        return {}
    waiting, running = _count(core, state.pending), _count(core, state.running)
    own: list[Counter[tuple[str, str]]] = []  # by (resource, model)
    for node, queue in enumerate(tree.queues):
        index = state.queues.get(queue.name, -1)
        held = quota_usage.held[index] if index >= 0 else (0, 0, 0)
        amounts = Counter({("gpu", ""): held[0], ("cpu", ""): held[1], ("memory", ""): held[2]})
        for key, (model, resource) in enumerate(tree.keys):
            if model:
                amounts[resource, model] = tree.own(node, key)
        own.append(amounts)
    for node in reversed(tree.downward):  # children first
        parent = tree.parents[node]
        if parent >= 0:
            own[parent].update(own[node])
            for counts in (waiting, running):
                counts[tree.queues[parent].name] += counts[tree.queues[node].name]
    return {
        queue.name: {
            "waiting": waiting[queue.name],
            "running": running[queue.name],
            "used": [
                {"resource": resource, "model": model, "amount": text_of(resource, amount)}
                for (resource, model), amount in sorted(own[node].items())
            ],
        }
        for node, queue in enumerate(tree.queues)
    }


def _count(core: Core, rows: Iterable[int]) -> Counter[str]:
    """Return how many of these jobs (rows) are in each queue, by name."""
    table = core.state.jobs[np.fromiter(rows, dtype=np.int64), J_QUEUE]
    names = list(core.state.queues)
    numbers, counts = np.unique(table, return_counts=True)
    return Counter({names[number]: count for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)})


def reservation_status(reserved: ReservedNodes | None, nodes: NodeSets, now: int) -> Status:
    """Return a reservation's phase, and how many nodes have its labels. `reserved` None: the object is invalid."""
    if reserved is None:
        return {"phase": "Refused", "nodes": 0}
    phase = "Pending" if now < reserved.start else "Active" if now < reserved.end else "Over"
    return {"phase": phase, "nodes": nodes.count(reserved.selector)}


def booking_status(booked: BookedGpus, nodes: tuple[str, ...], now: int) -> Status:
    """Return the status of a reservation of GPUs. Without `nodes` its phase is Collides: no GPUs were found yet."""
    phase = "Over" if now >= booked.end else "Collides" if not nodes else "Pending" if now < booked.start else "Active"
    return {"phase": phase, "nodes": len(nodes), "nodeNames": list(nodes)}


def _said(item: Unstructured) -> Status:
    try:
        found: Status = msgspec.json.decode(item.status)
        return found if isinstance(found, dict) else {}
    except msgspec.MsgspecError:
        return {}


def _with_times(wanted: Status, item: Unstructured) -> Status:
    """Return the status with the time since which each condition has its value: the time in the object, or now."""
    before = {one.get("type"): one for one in _said(item).get("conditions", [])}
    now = now_text()
    conditions = []
    for one in wanted["conditions"]:
        old = before.get(one["type"], {})
        since = old.get("lastTransitionTime", now) if old.get("status") == one["status"] else now
        conditions.append(one | {"lastTransitionTime": since})
    return wanted | {"conditions": conditions}
