"""ProvisioningRequests: nodes requested from an autoscaler, and the pods that consume them.

The objects are of autoscaling.x-k8s.io, as the Cluster Autoscaler defines them (its proposal provisioning-request.md):
pods name the request, and the autoscaler reports its progress in conditions. Pods are scheduled once their nodes are
provided. If a gang were tried before, it would use the capacity of others, or count as unschedulable.
"""

from __future__ import annotations

from kant.kube.objects.views import Pod

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


def consumed_by(pod: Pod) -> str:
    """Return the name of the ProvisioningRequest that a pod consumes; "" for none."""
    said = pod.metadata.annotations or {}
    return next((said[key] for key in CONSUMES if said.get(key)), "")
