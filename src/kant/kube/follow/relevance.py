"""What of an object anything depends on: where that stays the same, nothing has changed for us."""

from __future__ import annotations

from msgspec.structs import replace

from kant.kube.objects.views import Claim, Node, Pod, Unstructured
from kant.kube.translate.hami import REGISTER
from kant.kube.translate.provisioning import PROVISIONING
from kant.kube.translate.volumes import BIND_COMPLETED, SELECTED_NODE


def relevant_of_object(plural: str, item: Unstructured) -> tuple[object, ...]:
    """All of an object of another kind that anything depends on."""
    return item.metadata.uid, item.spec, item.status if plural == PROVISIONING else None


def relevant_of_claim(claim: Claim) -> tuple[object, ...]:
    """All of a claim that anything depends on."""
    meta = claim.metadata
    said = [(meta.annotations or {}).get(key) for key in (BIND_COMPLETED, SELECTED_NODE)]
    return meta.uid, meta.deletion_timestamp, claim.spec, claim.status.phase, said


def relevant_of_node(node: Node) -> tuple[object, ...]:
    """All of a node that anything depends on."""
    meta, status = node.metadata, node.status
    states = [(one.type, one.status) for one in status.conditions]
    known = (meta.uid, meta.labels, (meta.annotations or {}).get(REGISTER), meta.deletion_timestamp)
    return *known, node.spec, status.capacity, status.allocatable, states


def relevant_of_pod(pod: Pod) -> tuple[object, ...]:
    """All of a pod that anything depends on: what its conditions say in words is for people."""
    meta, status = pod.metadata, pod.status
    states = [(one.type, one.status, one.reason, one.last_transition_time) for one in status.conditions]
    return replace(meta, resource_version="", generation=0), pod.spec, replace(status, conditions=()), states
