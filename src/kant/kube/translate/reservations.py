"""Reservation objects. A Reservation reserves the nodes with some labels, or a number of GPUs."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError
from kant.model.units import FOREVER

WITHIN = ("", "hbd", "leaf", "spine", "superspine")
"""Topology levels that a reservation may name: one domain of the level must have all of its nodes. "": no level."""


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
    """Nodes with all of these labels, reserved for some queues from `start` to `end`. No queues: closed to all jobs.

    Times are microseconds after time zero, negative before it. `end` is FOREVER if the object has no end.
    """

    name: str
    selector: dict[str, str]
    queues: tuple[str, ...]
    start: int
    end: int
    reason: str


class BookedGpus(Struct, frozen=True):
    """At least `gpus` GPUs in whole adjacent nodes, for pods that name the reservation.

    The nodes are in one domain of the level `within` ("": anywhere) and have GPUs of `model` ("": all of one model).
    Pods of these `queues` may name the reservation (none: pods of all queues). Times are as in `ReservedNodes`.
    `created` is when the object was created. `nodes` are the nodes named in its status.
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


def reservation_of(found: Unstructured, epoch: int = 0) -> ReservedNodes | BookedGpus:
    """Return the reservation of an object; its times count from `epoch` (microseconds since 1970). InputError."""
    place, name = f"{about(found)}, spec", found.metadata.name
    spec: ReservationSpec = decoded(found, ReservationSpec)
    if bool(spec.node_selector) == bool(spec.gpus):
        raise InputError(f"{place}.nodeSelector", "one or more node labels, or else the field gpus")
    if spec.gpus < 0 or spec.within not in WITHIN:
        raise InputError(f"{place}.gpus", f"GPUs, with `within` as one of {', '.join(WITHIN[1:])}", spec.within)
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
