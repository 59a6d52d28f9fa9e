"""Device classes, slices and claims as tests write them: the driver, and who makes claims, are played."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kube.api import Api
from tests.kube.objects import Object, make_node, make_pod
from tests.patience import PATIENCE_S

DRIVER = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
CLAIMS = f"/apis/{API}/namespaces/default/resourceclaims"


def bare_node(name: str, **more: Any) -> Object:
    """A node without a device plugin."""
    return make_node(name, 0, **more)


def device_class(name: str = DRIVER, *expressions: str, config: Sequence[Object] = ()) -> Object:
    selectors = [{"cel": {"expression": one}} for one in expressions or (f"device.driver == '{name}'",)]
    spec = {"selectors": selectors} | ({"config": list(config)} if config else {})
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def device(
    name: str, capacity: Mapping[str, str] | None = None, *, more: Object | None = None, **attributes: Any
) -> Object:
    """A device; an attribute is a bool, a whole number, text, or a version as {"version": …}."""

    def of(value: Any) -> Object:
        if isinstance(value, dict):
            return value
        return {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}

    found: Object = {"name": name, "attributes": {key: of(value) for key, value in attributes.items()}}
    if capacity:
        found["capacity"] = {key: {"value": value} for key, value in capacity.items()}
    return found | (more or {})


def gpus(count: int, **attributes: Any) -> list[Object]:
    return [device(f"gpu-{at}", type="gpu", index=at, **attributes) for at in range(count)]


def device_slice(
    pool: str,
    devices: Sequence[Object] = (),
    *,
    driver: str = DRIVER,
    node: str | None = None,
    generation: int = 1,
    slices: int = 1,
    name: str = "",
    **spec: Any,
) -> Object:
    """A slice of a pool, on the node that is named like the pool unless `spec` says where."""
    where = {} if spec.keys() & {"nodeSelector", "allNodes", "perDeviceNodeSelection"} else {"nodeName": node or pool}
    own = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": slices}}
    body = own | where | ({"devices": list(devices)} if devices else {}) | spec
    meta = {"name": name or f"{pool}-{driver}".replace(".", "-")}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": meta, "spec": body}


def request(name: str = "gpu", of: str = DRIVER, count: int = 1, *expressions: str, **more: Any) -> Object:
    """`exactly` so many devices; with count 0 all there are."""
    how: Object = {"allocationMode": "All"} if count == 0 else {"count": count}
    selectors = [{"cel": {"expression": one}} for one in expressions]
    exactly = {"deviceClassName": of} | how | ({"selectors": selectors} if selectors else {}) | more
    return {"name": name, "exactly": exactly}


def first_of(name: str, *alternatives: Object) -> Object:
    """The first of these requests that can be had."""
    return {"name": name, "firstAvailable": [{"name": one["name"]} | one["exactly"] for one in alternatives]}


def claim(name: str, *requests: Object, **devices: Any) -> Object:
    spec = {"devices": {"requests": list(requests or (request(),))} | devices}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def template(name: str, *requests: Object, **devices: Any) -> Object:
    """What claims of pods are made from."""
    one = claim(name, *requests, **devices)
    return one | {"kind": "ResourceClaimTemplate", "spec": {"spec": one["spec"]}}


def uses(*claims: str, template: str = "") -> Object:
    """For the spec of a pod: claims by their names, or one that is made from a template."""
    if template:
        return {"resourceClaims": [{"name": "devices", "resourceClaimTemplateName": template}]}
    return {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims]}


async def make_claim(api: Api, pod: Object, template: Object) -> str:
    """What the controller of claims does for a pod that names a template."""
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    made = claim(f"{meta['name']}-devices-{secrets.token_hex(3)}") | {"spec": template["spec"]["spec"]}
    made["metadata"]["ownerReferences"] = [owner]
    made["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "devices"}
    await api.create(made)
    name = str(made["metadata"]["name"])
    status = {"status": {"resourceClaimStatuses": [{"name": "devices", "resourceClaimName": name}]}}
    await api.patch(f"/api/v1/namespaces/default/pods/{meta['name']}/status", status)
    return name


async def create_claiming(api: Api, pods: Sequence[Object], template: Object) -> dict[str, str]:
    """Pods with a claim each from a template, and the names of the claims by those of the pods."""
    found = {}
    for pod in pods:
        pod["spec"] |= uses(template=template["metadata"]["name"])
        found[pod["metadata"]["name"]] = await make_claim(api, await api.create(pod), template)
    return found


async def allocated(api: Api, *names: str) -> dict[str, list[tuple[str, str]]]:
    """The pool and name of the devices of claims, those without any left out; of all claims where none is named."""
    found = {}
    for one in await api.list(f"/apis/{API}/resourceclaims"):
        allocation = one.get("status", {}).get("allocation")
        if allocation and (not names or one["metadata"]["name"] in names):
            found[one["metadata"]["name"]] = [(r["pool"], r["device"]) for r in allocation["devices"]["results"]]
    return found


async def freed(api: Api, *names: str) -> None:
    """Wait until none of these claims is allocated."""
    async with asyncio.timeout(PATIENCE_S):
        while await allocated(api, *names):
            await asyncio.sleep(0.1)


def claiming_pod(name: str, *claims: str, **more: Any) -> Object:
    return make_pod(name, 0, **uses(*claims), **more)
