"""What a pod requests of its node, as one Demand: containers, init containers, sidecars and overhead taken together.

Source: k8s.io/component-helpers, resource/helpers.go (PodRequests), with sidecars as in KEP-753.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import wraps
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from kant.kube.objects.quantity import Quantity, count, exact, mib, milli
from kant.kube.objects.views import Container, PodSpec, Resources
from kant.model.errors import InputError
from kant.model.job import Demand
from kant.model.tenant import QueueConfig
from kant.model.units import GPU

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi")
"""Extended resources that count as GPUs."""

SHARES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""Resources by which pods request shares of a GPU from HAMi. No node lists these resources."""

PARTS = re.compile(r"nvidia\.com/(mig-[\w.]+|gpu\.shared)")
"""Parts of GPUs that a device plugin allocates: MIG devices, and replicas of time-shared GPUs.

The plugin has divided the GPUs and chooses among the parts, so a node has a number of each kind of part.
`kant.kube.translate.shares` says how parts count for quotas of GPUs, if the pod does not ask for whole GPUs too.
"""

UNCOUNTED = ("storage", "pods")
"""Resources of nodes that containers do not request."""

Amounts = dict[str, Fraction]


class PodRequests(NamedTuple):
    """`others` are amounts besides GPUs, CPU and memory: whole numbers, or MiB for bytes. `kind`: the GPU resource."""

    demand: Demand
    others: tuple[tuple[str, int], ...] = ()
    kind: str = ""


T = TypeVar("T")
MOST_KNOWN = 4096


def _remembered(read: Callable[[PodSpec, str], T]) -> Callable[..., T]:
    """Return `read` with a cache by the amounts in a spec: a workload's pods are equal, and exact sums are slow."""
    known: dict[Hashable, T] = {}

    @wraps(read)
    def reading(spec: PodSpec, where: str = "spec") -> T:
        key = key_of(spec)
        if key not in known:
            if len(known) == MOST_KNOWN:
                known.clear()
            known[key] = read(spec, where)
        return known[key]

    return reading


@_remembered
def requests_of(spec: PodSpec, where: str) -> PodRequests:
    """Return what a pod requests of its node. Raises InputError if a quantity is malformed or Kant cannot serve it."""
    total = _total(spec, where)
    place = f"{where}, resources"
    kinds = [name for name in GPU_RESOURCES if total.get(name)]
    if len(kinds) > 1:
        raise InputError(place, "GPUs of one kind", ", ".join(kinds))
    others = []
    for name, amount in sorted(total.items()):
        if not amount or name in (*kinds, "cpu", "memory", *UNCOUNTED, *SHARES):
            continue
        others.append((name, amount_of(name, amount, f"{place}, {name}")))
    demand = Demand(
        count(total[kinds[0]], f"{place}, {kinds[0]}") if kinds else 0,
        GPU,
        milli(total.get("cpu", _NONE), f"{place}, cpu"),
        mib(total.get("memory", _NONE), f"{place}, memory"),
    )
    return PodRequests(demand, tuple(others), kinds[0] if kinds else "")


@_remembered
def used_of(spec: PodSpec, where: str) -> Demand:
    """Return the GPUs, CPU and memory that a bound pod uses; zeros if its spec cannot be read."""
    try:
        total = _total(spec, where)
        kind = next((name for name in GPU_RESOURCES if total.get(name)), "")
        devices = count(total[kind], "gpus") if kind else 0
        return Demand(devices, GPU, milli(total.get("cpu", _NONE), "cpu"), mib(total.get("memory", _NONE), "memory"))
    except InputError:
        return Demand()


@_remembered
def others_of(spec: PodSpec, where: str) -> dict[str, int]:
    """Return what any pod uses of its node besides GPUs, CPU and memory. Amounts that cannot be read are left out."""
    found: dict[str, int] = {}
    with suppress(InputError):
        for name, amount in _total(spec, where).items():
            if amount and name not in (*GPU_RESOURCES, "cpu", "memory", *UNCOUNTED, *SHARES):
                with suppress(InputError):
                    found[name] = amount_of(name, amount, name)
    return found


def amount_of(name: str, value: Quantity | Fraction, where: str, up: bool = True) -> int:
    """Return an amount of a resource other than GPUs, CPU and memory: in MiB for bytes, else a whole number."""
    return mib(value, where, up) if is_bytes(name) else count(value, where)


def check_parts(spec: PodSpec, queue: str, queue_config: QueueConfig, counted: Collection[str] = ()) -> None:
    """Raise InputError if a pod requests parts of GPUs (`PARTS`), and its queue's GPU quota does not count them."""
    names = (name for name in others_of(spec) if name not in counted)
    part = next(filter(PARTS.fullmatch, names), None)
    if part is not None:
        also = used_of(spec).gpus and part.startswith("nvidia.com/mig-")
        check_quota("resources", part, queue, queue_config, BOTH if also else UNCOUNTED_PART)


UNCOUNTED_PART = "whole GPUs in queue {}, whose quota does not count parts of GPUs"
UNCOUNTED_CLAIM = "whole GPUs, or parts with a known share of a GPU, in queue {}, which has a quota of GPUs"
BOTH = "a pod with either MIG devices or whole GPUs in queue {}, whose quota cannot count both"


def check_quota(where: str, part: str, queue: str, queue_config: QueueConfig, expected: str = UNCOUNTED_PART) -> None:
    """Raise InputError with `expected` about this part of a GPU, if the queue or a queue above it has a GPU quota."""
    path = queue_config.lineage(queue)
    for one in queue_config.queues:
        if one.name in path and any(quota.resource == "gpu" for quota in one.quotas):
            raise InputError(where, expected.format(one.name), part)


class Claimed(NamedTuple):
    """The GPUs of device claims: the number of whole GPUs, and the sum of the parts in thousandths of a GPU."""

    gpus: int = 0
    milli: int = 0


def gives_gpus(resources: Collection[str]) -> bool:
    """Whether any of these resources is a GPU resource."""
    return any(name in GPU_RESOURCES for name in resources)


def with_gpus(demand: Demand, claimed: Claimed) -> Demand:
    """Return the demand plus the GPUs of claims. Parts of GPUs are ignored if there are whole GPUs."""
    if claimed.gpus:
        return Demand(demand.gpus + claimed.gpus, GPU, demand.cpu, demand.memory)
    if not claimed.milli or demand.gpus:
        return demand
    milli = claimed.milli + (demand.milli if demand.mig else 0)
    return replace(demand, milli=milli, mig=",".join(filter(None, (demand.mig, "claims"))))


def is_bytes(name: str) -> bool:
    """Whether amounts of this resource, which is neither CPU nor memory, are in bytes."""
    return name == "ephemeral-storage" or name.startswith("hugepages-")


def capacity_of(amounts: Mapping[str, Quantity]) -> Demand:
    """Return the GPUs, CPU and memory among the amounts of a node; zeros if they cannot be read."""
    found = Demand()
    with suppress(InputError):
        found = Demand(
            sum(count(amounts[name], name) for name in GPU_RESOURCES if name in amounts),
            GPU,
            milli(amounts.get("cpu", 0), "cpu", up=False),
            mib(amounts.get("memory", 0), "memory", up=False),
        )
    return found


_NONE = Fraction(0)


def key_of(spec: PodSpec) -> Hashable:
    """Return a key that is equal only for specs that request equal amounts in the same notation."""
    starting = None
    if spec.init_containers:
        starting = tuple((_words(one), one.restart_policy) for one in spec.init_containers)
    overhead = tuple(spec.overhead.items()) if spec.overhead else None
    return tuple(map(_words, spec.containers)), starting, overhead, _words(spec) if spec.resources else None


def _words(one: Container | PodSpec) -> Hashable:
    requests, limits = (one.resources.requests, one.resources.limits) if one.resources else (None, None)
    return tuple(requests.items()) if requests else None, tuple(limits.items()) if limits else None


def _total(spec: PodSpec, where: str) -> Amounts:
    """Return, by resource, the most that a pod needs at any time, both while it starts and while it runs."""
    running: Amounts = {}  # sidecars so far, and then the containers
    starting: Amounts = {}
    for number, container in enumerate(spec.init_containers):
        own = _of_container(container, f"{where}.initContainers[{number}]")
        if container.restart_policy == "Always":
            running = _sum(running, own)
            starting = _most(starting, running)
        else:
            starting = _most(starting, _sum(running, own))
    for number, container in enumerate(spec.containers):
        running = _sum(running, _of_container(container, f"{where}.containers[{number}]"))
    total = _most(running, starting)
    if spec.resources is not None:  # pod-level resources (KEP-2837) replace the sum of the containers
        total |= amounts_of(spec.resources, f"{where}.resources")
    return _sum(total, _amounts(spec.overhead, f"{where}.overhead"))


def _of_container(container: Container, where: str) -> Amounts:
    return amounts_of(container.resources, f"{where}.resources")


def amounts_of(resources: Resources, where: str) -> Amounts:
    """Return the requests by resource. A limit without a request counts as a request. Raises InputError."""
    return _amounts(resources.limits, f"{where}.limits") | _amounts(resources.requests, f"{where}.requests")


def _amounts(amounts: dict[str, Quantity] | None, where: str) -> Amounts:
    return {name: exact(value, f"{where}.{name}") for name, value in (amounts or {}).items()}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in one.keys() | other.keys()}


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in one.keys() | other.keys()}
