"""The allocation of a claim in the form of the claim's status.

Source: k8s.io/dynamic-resource-allocation, structured/internal (allocator_stable.go, Allocate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from kant.kube.objects import device_views as d
from kant.kube.translate.device_capacity import text_of
from kant.kube.translate.devices import reach_of

if TYPE_CHECKING:
    from kant.kube.translate.device_allocator import Grant


def results_of(
    claim: d.ResourceClaim, grants: Sequence[Grant], classes: Mapping[str, d.DeviceClass], node: str, now: str
) -> dict[str, Any]:
    """Return `status.allocation` of a claim for these devices, which were chosen for a node.

    It also has the devices' configuration, the nodes that can use them, and a timestamp if a device must be attached.
    """
    results = []
    for grant in grants:
        want, device = grant
        driver, pool, name = device.id
        result: dict[str, Any] = {"request": want.name, "driver": driver, "pool": pool, "device": name}
        if want.admin:
            result["adminAccess"] = True
        if device.shared:
            consumed = {name: text_of(amount) for name, amount in grant.taken.items()}
            result |= {"shareID": str(uuid4())} | ({"consumedCapacity": consumed} if consumed else {})
        if want.tolerations:
            result["tolerations"] = [msgspec.to_builtins(one) for one in want.tolerations]
        view = device.view
        if view.binding_conditions:
            failures = {"bindingFailureConditions": view.binding_failure_conditions}
            result |= {"bindingConditions": view.binding_conditions} | (failures if any(failures.values()) else {})
        results.append(result)
    config = [*_of_classes(grants, classes), *_of_claim(claim, grants)]
    reach = reach_of([one.device for one in grants], node)
    waits = any(one.device.view.binding_conditions for one in grants)
    return {
        "devices": {"results": results} | ({"config": config} if config else {}),
        **({"nodeSelector": msgspec.to_builtins(reach)} if reach is not None else {}),
        **({"allocationTimestamp": now} if waits else {}),
    }


def _of_classes(grants: Sequence[Grant], classes: Mapping[str, d.DeviceClass]) -> list[dict[str, Any]]:
    requests: dict[str, dict[str, None]] = {}
    for want, _ in grants:
        requests.setdefault(want.device_class, {})[want.name] = None
    return [
        {"source": "FromClass", "requests": list(wanted)} | one
        for name, wanted in requests.items()
        if name in classes
        for one in classes[name].spec.config
    ]


def _of_claim(claim: d.ResourceClaim, grants: Sequence[Grant]) -> list[dict[str, Any]]:
    chosen = {name for want, _ in grants for name in (want.name, want.name.partition("/")[0])}
    given = claim.spec.devices.config
    about = (one for one in given if not one.get("requests") or chosen.intersection(one["requests"]))
    return [{"source": "FromClaim"} | one for one in about]
