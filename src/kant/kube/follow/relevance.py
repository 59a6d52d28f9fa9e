"""The parts of objects that matter to Kant: a change of any other part is ignored."""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec.structs import replace

from kant.kube.objects.views import Claim, Node, Pod, Unstructured
from kant.kube.translate.hami_devices import REGISTER
from kant.kube.translate.provisioning import PROVISIONING
from kant.kube.translate.volumes import BIND_COMPLETED, SELECTED_NODE


def relevant_of_object(plural: str, item: Unstructured) -> tuple[object, ...]:
    """Return the relevant parts of an object of an optional kind, named by its plural."""
    return item.metadata.uid, item.spec, item.status if plural == PROVISIONING else None


def relevant_of_claim(claim: Claim) -> tuple[object, ...]:
    """Return the relevant parts of a PersistentVolumeClaim."""
    meta = claim.metadata
    said = [(meta.annotations or {}).get(key) for key in (BIND_COMPLETED, SELECTED_NODE)]
    return meta.uid, meta.deletion_timestamp, claim.spec, claim.status.phase, said


def relevant_of_node(node: Node) -> tuple[object, ...]:
    """Return the relevant parts of a node."""
    meta, status = node.metadata, node.status
    states = [(one.type, one.status) for one in status.conditions]
    known = (meta.uid, meta.labels, (meta.annotations or {}).get(REGISTER), meta.deletion_timestamp)
    return *known, node.spec, status.capacity, status.allocatable, states


def waits_elsewhere(schedulers: Collection[str]) -> Callable[[bytes], bool]:
    """Return a function that says, without decoding, whether a line of a watch modifies a pod that has no node and is
    for none of these schedulers. False if this is unclear, and for pods with claims, whose names come late in the line.
    """
    name, ours = b'"schedulerName":"', [f'"schedulerName":"{one}"'.encode() for one in schedulers]

    def skips(line: bytes) -> bool:
        if not line.startswith(b'{"type":"MODIFIED"') or name not in line or b'"nodeName"' in line:
            return False
        return b'"resourceClaims"' not in line and not [one for one in ours if one in line]

    return skips


def relevant_of_pod(pod: Pod) -> tuple[object, ...]:
    """Return the relevant parts of a pod. The messages of its conditions are not among them: people read them."""
    meta, status = pod.metadata, pod.status
    states = [(one.type, one.status, one.reason, one.last_transition_time) for one in status.conditions]
    return replace(meta, resource_version="", generation=0), pod.spec, replace(status, conditions=()), states
