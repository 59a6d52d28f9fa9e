"""Devices that are attached to a node before pods that use them may be bound there (KEP-5007).

A ResourceSlice lists the conditions for which its devices must wait. The claim's status says which conditions are met.
Source: kube-scheduler's plugin DynamicResources (isClaimReadyForBinding, isClaimTimeout).
"""

from __future__ import annotations

from typing import NamedTuple

from kant.kube.objects.device_views import ResourceClaim
from kant.kube.objects.times import microseconds
from kant.model.units import SECOND

PATIENCE = 600  # seconds from the allocation, the default of kube-scheduler


class Unattached(NamedTuple):
    """Why pods may not be bound yet, as one sentence. `lost`: the allocation can never be used."""

    why: str
    lost: bool


def unattached(claim: ResourceClaim, now: float) -> Unattached | None:
    """Return what the devices of a claim wait for at `now` (seconds since 1970); None if all may be used."""
    allocation, waits = claim.status.allocation, ""
    if allocation is None:
        return None
    said = {(one.driver, one.pool, one.device, one.share_id): one.conditions for one in claim.status.devices}
    for one in allocation.devices.results:
        of_device = said.get((one.driver, one.pool, one.device, one.share_id), ())
        met = {condition.type: condition for condition in of_device if condition.status == "True"}
        name = f"device {one.device} of its claim {claim.metadata.name}"
        for kind in one.binding_failure_conditions:
            if kind in met:
                return Unattached(f"{name} cannot be attached: {met[kind].message or met[kind].reason or kind}", True)
        lacking = [kind for kind in one.binding_conditions if kind not in met]
        if lacking and not waits:
            waits = f"{name} is not {', '.join(lacking)} yet"
    since = allocation.allocation_timestamp
    if waits and since and microseconds(since, claim.metadata.name) + PATIENCE * SECOND < now * SECOND:
        return Unattached(f"{waits}, after {PATIENCE} s", True)
    return Unattached(waits, False) if waits else None
