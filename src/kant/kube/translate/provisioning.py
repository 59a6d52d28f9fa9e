"""ProvisioningRequests: nodes requested from an autoscaler, and the pods that consume them.

The objects are of autoscaling.x-k8s.io, as the Cluster Autoscaler defines them (its proposal provisioning-request.md):
pods name the request, and the autoscaler reports its progress in conditions. Pods are scheduled once their nodes are
provided. If a gang were tried before, it would use the capacity of others, or count as unschedulable.
"""

from __future__ import annotations

import msgspec

from kant.kube.objects.views import Condition, Pod, Unstructured, View

PROVISIONING = "provisioningrequests"
"""The name of the kind in the mirror."""

PROVISIONING_PATHS = tuple(
    f"/apis/autoscaling.x-k8s.io/{version}/provisioningrequests" for version in ("v1", "v1beta1")
)
CONSUMES = (
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",
)
"""The annotation of a pod that names its ProvisioningRequest, and an older name of the annotation."""


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()


def consumed_by(pod: Pod) -> str:
    """Return the name of the ProvisioningRequest that a pod consumes; "" for none."""
    said = pod.metadata.annotations or {}
    return next((said[key] for key in CONSUMES if said.get(key)), "")


def why_not_provided(name: str, found: Unstructured | None) -> str:
    """Return one sentence on why the nodes of a ProvisioningRequest are missing; "" if they are provided.

    `found` None: the object does not exist. After its booking has expired, its pods compete with others for the nodes.
    """
    if found is None:
        return f"its ProvisioningRequest {name} does not exist"
    try:
        conditions = msgspec.json.decode(found.status, type=_Status).conditions
    except msgspec.MsgspecError:
        conditions = ()
    met = {one.type: one for one in conditions if one.status == "True"}
    if "Failed" in met:
        said = met["Failed"].message or met["Failed"].reason
        return f"its ProvisioningRequest {name} has failed" + (f": {said}" if said else "")
    if "Provisioned" in met:
        return ""
    if "BookingExpired" in met:
        return f"the booking of its ProvisioningRequest {name} expired before the nodes were provided"
    if "Accepted" in met:
        return f"its ProvisioningRequest {name} is accepted, and its nodes are not provided yet"
    return f"its ProvisioningRequest {name} has not been accepted yet"
