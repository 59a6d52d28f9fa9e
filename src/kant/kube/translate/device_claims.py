"""What a device claim asks for, and which claims a pod has.

Source: ResourceClaim of resource.k8s.io/v1; k8s.io/dynamic-resource-allocation, resourceclaim/claim.go (Name).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.objects.names import ALLOCATED
from kant.kube.objects.refusals import NotYetError
from kant.kube.translate.device_capacity import billionths
from kant.kube.translate.selectors import Term, terms_of
from kant.kube.translate.volumes import ClaimName
from kant.model.errors import InputError

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The finalizer that keeps an allocated claim from being deleted."""

EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that the scheduler creates for extended resources of the pod that owns the claim."""

MOST_DEVICES = 32
"""Maximum number of devices of one claim (AllocationResultsMaxSize)."""

MOST_CONSUMERS = 256
"""Maximum number of pods that use one claim (ResourceClaimReservedForMaxSize)."""


class Want(NamedTuple):
    """One alternative of a request: a number of matching devices of a class (0: all such devices of the node).

    `selectors` are the CEL expressions of the class, `own` those of the claim, which use its namespace's CPU time.
    """

    name: str
    device_class: str
    number: int
    selectors: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    admin: bool = False
    tolerations: tuple[k.Toleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()  # that each device must provide, in billionths


class Constraint(NamedTuple):
    """Devices of these requests (none: of all) have equal values of an attribute; if `distinct`, different ones."""

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False

    def is_about(self, want: Want) -> bool:
        parent = want.name.partition("/")[0]
        return not self.requests or want.name in self.requests or parent in self.requests


class Asked(NamedTuple):
    """What a claim asks for: the alternatives of each request. The first possible alternative is used."""

    requests: tuple[tuple[Want, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    namespace: str = ""


def anonymous(asked: Asked) -> Asked:
    """Return `asked` without names of requests and classes: equal if the same devices satisfy both claims."""
    named = bool(asked.constraints)
    return asked._replace(
        requests=tuple(
            tuple(want._replace(name=want.name if named else "", device_class="") for want in wants)
            for wants in asked.requests
        )
    )


def claim_names(pod: k.Pod) -> tuple[str, ...]:
    """Return the names of the claims that a pod uses. Raises NotYetError if one has not been created yet."""
    if not pod.spec.resource_claims:
        return ()
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    names = []
    for one in pod.spec.resource_claims:
        name = one.resource_claim_name
        if name is None:
            if one.name not in made:
                template = one.resource_claim_template_name
                raise NotYetError(f"its claim {one.name} has not been created from the template {template} yet")
            name = made[one.name]
        if name is not None:
            names.append(name)
    return tuple(dict.fromkeys(names))


def known_names(pod: k.Pod) -> tuple[str, ...]:
    """Return the names of the claims of a pod that have been created."""
    if not pod.spec.resource_claims:
        return ()
    made = (one.resource_claim_name for one in (*pod.spec.resource_claims, *pod.status.resource_claim_statuses))
    return tuple(dict.fromkeys(name for name in made if name is not None))


def key_of(claim: d.ResourceClaim) -> ClaimName:
    return claim.metadata.namespace, claim.metadata.name


def asked_of(claim: d.ResourceClaim, classes: Mapping[str, d.DeviceClass]) -> Asked:
    """Return what a claim asks for. Raises NotYetError if a class is missing, InputError if Kant can never serve it."""
    spec, where = claim.spec.devices, f"resourceclaim {claim.metadata.namespace}/{claim.metadata.name}"
    requests: list[tuple[Want, ...]] = []
    for one in spec.requests:
        place = f"{where}, request {one.name}"
        if one.exactly is not None:
            requests.append((_want(one.name, one.exactly, classes, place),))
        elif one.first_available:
            requests.append(tuple(_want(f"{one.name}/{sub.name}", sub, classes, place) for sub in one.first_available))
        else:
            raise InputError(place, "exactly or firstAvailable")
    return Asked(tuple(requests), tuple(_constraint(one, where) for one in spec.constraints), claim.metadata.namespace)


def _want(name: str, one: d.ExactRequest, classes: Mapping[str, d.DeviceClass], where: str) -> Want:
    own = classes.get(one.device_class_name)
    if own is None:
        raise NotYetError(f"the device class {one.device_class_name}, which its claim names, does not exist")
    if one.allocation_mode not in ("ExactCount", "All"):
        raise InputError(f"{where}.allocationMode", "ExactCount or All", one.allocation_mode)
    count = one.count if one.allocation_mode == "ExactCount" else 0
    if one.allocation_mode == "ExactCount" and not 0 < count <= MOST_DEVICES:
        raise InputError(f"{where}.count", f"1 to {MOST_DEVICES}, as many devices as a claim may have", count)
    return Want(
        name,
        one.device_class_name,
        count,
        _expressions(own.spec.selectors, f"deviceclass {one.device_class_name}"),
        _expressions(one.selectors, where),
        one.admin_access,
        one.tolerations,
        tuple(
            (name, billionths(amount, f"{where}.capacity.requests[{name}]"))
            for name, amount in sorted((one.capacity or d.CapacityRequests()).requests.items())
        ),
    )


def _expressions(selectors: Iterable[d.DeviceSelector], where: str) -> tuple[str, ...]:
    found = []
    for one in selectors:
        if one.cel is None:
            raise InputError(f"{where}, selectors", "expressions of CEL")
        found.append(one.cel.expression)
    return tuple(found)


def _constraint(one: d.DeviceConstraint, where: str) -> Constraint:
    if not (one.match_attribute or one.distinct_attribute):
        raise InputError(f"{where}, constraints", "matchAttribute or distinctAttribute")
    return Constraint(one.requests, one.match_attribute or one.distinct_attribute, bool(one.distinct_attribute))


# --- claims that have their devices ----------------------------------------------------------------------------------


def is_ours(claim: d.ResourceClaim) -> bool:
    """Whether Kant has allocated the claim."""
    return ALLOCATED in (claim.metadata.annotations or {})


def identity(claim: d.ResourceClaim) -> str:
    """Return the uid of a claim; for extended resources the pod's uid, since Kant may re-create such a claim."""
    if EXTENDED in (claim.metadata.annotations or {}):
        return next((one.uid for one in claim.metadata.owner_references if one.controller), "")
    return claim.metadata.uid


def is_made(claim: d.ResourceClaim) -> bool:
    """Whether the claim exists. A claim that is only planned, for extended resources, has no uid."""
    return bool(claim.metadata.uid)


def held_by(claim: d.ResourceClaim) -> list[tuple[str, str, str]]:
    """Return the claim's devices as (driver, pool, name). Devices for administrator access are left out."""
    allocation = claim.status.allocation
    if allocation is None:
        return []
    return [(one.driver, one.pool, one.device) for one in allocation.devices.results if not one.admin_access]


def consumed_by(claim: d.ResourceClaim, device: tuple[str, str, str]) -> dict[str, int]:
    """Return how much a claim uses of a shared device, by capacity, in billionths."""
    found: Counter[str] = Counter()
    for one in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
        if (one.driver, one.pool, one.device) == device and not one.admin_access:
            found.update({name: billionths(amount, name) for name, amount in one.consumed_capacity.items()})
    return found


def reach_terms(claim: d.ResourceClaim) -> tuple[Term, ...] | None:
    """Return terms for the nodes that can use an allocated claim; a node must meet one of them. None: any node can."""
    allocation = claim.status.allocation
    selector = allocation.node_selector if allocation is not None else None
    if selector is None or not selector.node_selector_terms:
        return None
    return terms_of(selector, f"resourceclaim {claim.metadata.name}, status.allocation.nodeSelector")


def with_consumers(reserved: Sequence[d.Consumer], pods: Sequence[k.Pod], others: Sequence[k.Pod]) -> list[d.Consumer]:
    """Return the pods for which to reserve a claim: `pods`, and as many of the others as the limit allows."""
    named = {one.uid: one for one in reserved}
    for number, pod in enumerate((*pods, *others)):
        if number < len(pods) or len(named) < MOST_CONSUMERS:
            named.setdefault(pod.metadata.uid, d.Consumer("", "pods", pod.metadata.name, pod.metadata.uid))
    return list(named.values())
