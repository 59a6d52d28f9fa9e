"""A first look at a cluster, with few requests and little to load: how large it is, what runs there, what we may see.

And what Kant has said of one's own pods, on the pods themselves: for whoever may see no others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.errors import advice
from kant.kube.objects.names import PROFILE
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Meta, Pod, View
from kant.kube.user.targets import Target, pods_meant
from kant.model.errors import InputError


class Glance(NamedTuple):
    """How many nodes there are, None where we may not see them; the text of the leader's profile, "" if unknown."""

    nodes: int | None
    profile: str


class _ListMeta(View, frozen=True):
    remaining_item_count: int = 0


class _Count(View, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] = ()


class _Lease(View, frozen=True):
    metadata: Meta = Meta()


async def glance(config: Config, system: str) -> Glance:
    """Look. Raises InputError where the API server does not answer, or does not know us."""
    async with _client(config) as client:
        nodes: int | None = None
        try:
            for path in ("/api/v1/pods", "/api/v1/nodes"):
                found = await client.get(path, _Count, params={"limit": "1"})
                nodes = len(found.items) + found.metadata.remaining_item_count
        except ApiError as error:
            if error.code != 403:
                raise InputError("the API server", f"one that lets us in ({advice(error, config.source)})") from None
            nodes = None
        try:
            lease = await client.get(f"/apis/coordination.k8s.io/v1/namespaces/{quote(system)}/leases/kant", _Lease)
            return Glance(nodes, (lease.metadata.annotations or {}).get(PROFILE, ""))
        except ApiError:
            return Glance(nodes, "")


async def own_pods(config: Config, namespace: str, name: str, scheduler_name: str = "kant") -> dict[str, Any]:
    """What Kant has written on the pods of one's own namespace that are meant. Raises InputError."""
    path, pods = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", list[Pod]()
    async with _client(config) as client:
        try:
            async for items, _ in client.pages(path, Pod):
                pods += [pod for pod in items if pod.spec.scheduler_name == scheduler_name]
        except ApiError as error:
            if error.code == 403:
                expected = f"an account that may list pods of namespace {namespace}, or the role kant-inspector"
                raise InputError("Kubernetes", expected) from None
            raise InputError("the API server", f"one that lets us in ({advice(error, config.source)})") from None
    meant = pods_meant(pods, Target("", name))
    if not meant:
        raise InputError("POD", f"a pod of namespace {namespace} with schedulerName {scheduler_name}", name)
    waiting = [pod for pod in meant if not pod.spec.node_name]
    said = next((one for pod in waiting for one in pod.status.conditions if one.type == "PodScheduled"), None)
    return {
        "job": f"{namespace}/{name}",
        "status": "pending" if waiting else "running",
        "reason": said.reason if said is not None else "",
        "sentence": said.message if said is not None else "",
        "since_us": min(microseconds(pod.metadata.creation_timestamp, pod.metadata.name) for pod in meant),
        "pods": {pod.metadata.name: pod.spec.node_name for pod in meant},
    }


@asynccontextmanager
async def _client(config: Config) -> AsyncIterator[ApiClient]:
    async with ApiClient(config, concurrency=2, timeout=30.0) as client:
        yield client
