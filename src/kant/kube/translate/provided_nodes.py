"""Whether the nodes of a ProvisioningRequest are provided, from the conditions that the autoscaler writes."""

from __future__ import annotations

import msgspec

from kant.kube.objects.views import Condition, Unstructured, View


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()


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
