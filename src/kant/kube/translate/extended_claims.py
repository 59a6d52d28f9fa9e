"""Extended resources that device classes provide: Kant creates the claim for them once a pod has a node.

A class provides the resource in its `extendedResourceName`, and always `deviceclass.resource.kubernetes.io/NAME`. A pod
gets the resource from the node's device plugin if that provides it, otherwise from devices of the class.

Source: KEP-5004; kube-scheduler's plugin DynamicResources (extendeddynamicresources.go) for the requests of the claim,
and k8s.io/dynamic-resource-allocation, deviceclass/extendedresourcecache, for which class provides a resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.objects.names import ALLOCATED
from kant.kube.objects.quantity import count, exact
from kant.kube.translate.device_claims import EXTENDED, FINALIZER
from kant.model.errors import InputError

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of the name of the extended resource that every class provides. The name of the class follows it."""

LONGEST = 253
"""Maximum length of the name of an object."""


class Part(NamedTuple):
    """A pod's use of one extended resource: device requests (name, number), and which container uses which request."""

    resource: str
    requests: tuple[tuple[str, int], ...]
    mappings: tuple[k.RequestMapping, ...]


@dataclass(slots=True)
class ExtendedClaim:
    """The claim that a pod may need for its extended resources. What it requests depends on the node."""

    name: str
    pod: k.Pod
    parts: tuple[Part, ...]
    classes: Mapping[str, str]
    _made: dict[tuple[str, ...], d.ResourceClaim] = field(default_factory=dict)

    def needed_at(self, node: k.Node | None) -> tuple[str, ...]:
        """Return the pod's resources that no device plugin of the node provides: the claim must provide them."""
        amounts = (node.status.allocatable or {}) if node is not None else {}
        return tuple(one.resource for one in self.parts if not has_amount(amounts, one.resource))

    def claim(self, resources: tuple[str, ...] | None = None, version: str = "") -> d.ResourceClaim:
        """Return the claim for these resources (None: for all). The claim has no uid, since it has not been created."""
        wanted = tuple(one.resource for one in self.parts) if resources is None else resources
        found = self._made.get(wanted)
        if found is None:
            found = self._made[wanted] = self._claim(wanted)
        if not version:
            return found
        return d.ResourceClaim(replace(found.metadata, resource_version=version), found.spec)

    def _claim(self, wanted: tuple[str, ...]) -> d.ResourceClaim:
        requests = sorted(
            (name, self.classes[part.resource], number)
            for part in self.parts
            if part.resource in wanted
            for name, number in part.requests
        )
        meta = self.pod.metadata
        owner = k.Owner("v1", "Pod", meta.name, meta.uid, True)
        devices = d.ClaimedDevices(
            tuple(d.DeviceRequest(name, d.ExactRequest("", own, count=number)) for name, own, number in requests)
        )
        head = d.ClaimMeta(self.name, meta.namespace, annotations={EXTENDED: "true"}, owner_references=(owner,))
        return d.ResourceClaim(head, d.ResourceClaimSpec(devices))

    def mappings(self, resources: tuple[str, ...]) -> tuple[k.RequestMapping, ...]:
        """Return which container gets the devices of which request, in the claim for these resources."""
        return tuple(one for part in self.parts if part.resource in resources for one in part.mappings)


def served_by(classes: Iterable[d.DeviceClass]) -> dict[str, str]:
    """Return, by resource, the class that provides it: the newest, and of equally new classes the first by name."""
    found: dict[str, str] = {}
    for one in sorted(classes, key=lambda one: one.metadata.name, reverse=True):
        found[f"{IMPLICIT}{one.metadata.name}"] = one.metadata.name
    explicit = [one for one in classes if one.spec.extended_resource_name]
    explicit.sort(key=lambda one: one.metadata.name, reverse=True)
    explicit.sort(key=lambda one: one.metadata.creation_timestamp)
    return found | {one.spec.extended_resource_name: one.metadata.name for one in explicit}


def extended_of(pod: k.Pod, classes: Mapping[str, str]) -> ExtendedClaim | None:
    """Return the claim that a pod may need for its containers' requests. None if no class provides any of them."""
    starting = len(pod.spec.init_containers)
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asked = sorted({name for one in containers for name in one.resources.requests or () if name in classes})
    if not asked:
        return None
    try:
        parts = tuple(part for name in asked if (part := _part(name, containers, starting)).requests)
    except InputError:
        return None  # the error is reported when the pod's amounts are read
    return ExtendedClaim(name_for(pod), pod, parts, classes) if parts else None


def name_for(pod: k.Pod) -> str:
    """Return the name of a pod's claim. It depends only on the pod, so that the next leader finds the claim."""
    tail = f"-extended-resources-{blake2s(pod.metadata.uid.encode(), digest_size=5).hexdigest()}"
    return f"{pod.metadata.name[: LONGEST - len(tail)].rstrip('.-')}{tail}"


def has_amount(amounts: Mapping[str, str | int | float], resource: str) -> bool:
    """Whether the amount of a resource is above zero; unreadable amounts count as zero."""
    try:
        return exact(amounts.get(resource, 0), resource) > 0
    except InputError:
        return False


def body_of(claim: d.ResourceClaim, notes: Mapping[str, str]) -> dict[str, Any]:
    """Return a claim for extended resources as the body of a create request, marked as Kant's and with the finalizer.

    `notes` are further annotations.
    """
    marks = {EXTENDED: "true", ALLOCATED: "true", **notes}
    made = replace(claim, metadata=replace(claim.metadata, annotations=marks, finalizers=(FINALIZER,)))
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **to_builtins(made)}


def requests_same(one: d.ResourceClaim, other: d.ResourceClaim) -> bool:
    """Whether two claims for extended resources ask for the same."""
    return _relevant(one) == _relevant(other)


def _relevant(claim: d.ResourceClaim) -> list[tuple[str, str, int]]:
    exact = [(one.name, one.exactly or d.ExactRequest()) for one in claim.spec.devices.requests]
    return [(name, own.device_class_name, own.count) for name, own in exact]


def _part(resource: str, containers: tuple[k.Container, ...], starting: int) -> Part:
    """Return a request for each long-running container, and one for what init containers need in addition."""
    stays = [at >= starting or one.restart_policy == "Always" for at, one in enumerate(containers)]
    requests: dict[int, tuple[str, int]] = {}
    mappings: list[k.RequestMapping] = []
    for at in [at for at, one in enumerate(stays) if one]:
        if number := _asked(containers[at], resource):
            requests[at] = _request_name(at, containers[at], resource), number
            mappings.append(k.RequestMapping(containers[at].name, resource, requests[at][0]))
    most, brief, own = ("", 0), list[k.RequestMapping](), set[str]()
    for at in [at for at, one in enumerate(stays) if not one]:
        lacking = _asked(containers[at], resource)
        for _, (name, number) in sorted(one for one in requests.items() if one[0] >= at):
            if lacking > 0:
                brief.append(k.RequestMapping(containers[at].name, resource, name))
                lacking -= number
        if lacking > 0:
            name = _request_name(at, containers[at], resource)
            own.add(name)
            brief.append(k.RequestMapping(containers[at].name, resource, name))
            most = (name, lacking) if lacking > most[1] else most
    brief = [
        k.RequestMapping(one.container_name, resource, most[0]) if one.request_name in own else one for one in brief
    ]
    return Part(resource, (*([most] if most[1] else []), *requests.values()), (*mappings, *brief))


def _asked(container: k.Container, resource: str) -> int:
    return count((container.resources.requests or {}).get(resource, 0), resource)


def _request_name(at: int, container: k.Container, resource: str) -> str:
    return f"container-{at}-request-{sorted(container.resources.requests or ()).index(resource)}"
