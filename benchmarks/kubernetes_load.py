"""Fake nodes, pods and gangs as JSON, and a watch that notes when each pod is bound, and to which node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Struct

from benchmarks.kubernetes_rig import GROUP, Api

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES = "/api/v1/nodes"
POD_GROUPS = f"/apis/{GROUP}/namespaces/{NAMESPACE}/podgroups"
SLOTS = 8
LEAF, SPINE = 16, 128
"""Nodes under one leaf switch, and under one spine."""
SPINE_LABEL = "network.topology.nvidia.com/spine"
LEAF_LABEL = "network.topology.nvidia.com/leaf"


def nodes(count: int, first: int = 0) -> list[bytes]:
    """Nodes of 8 GPUs, ready, with the labels of leaf and spine that topograph writes, from the `first` on."""
    size = {"cpu": "128", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": str(SLOTS)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    return [
        encoded(
            "v1", "Node", f"node-{i:05}", status={"capacity": size, "allocatable": size, "conditions": [ready]},
            labels={
                "kubernetes.io/hostname": f"node-{i:05}", LEAF_LABEL: f"leaf-{i // LEAF}",
                SPINE_LABEL: f"spine-{i // SPINE}", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            },
        )
        for i in range(first, first + count)
    ]  # fmt: skip


def pod(
    name: str, scheduler: str, gpus: int = 1, node: str = "", gang: str = "", level: str = "",
    notes: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """A pod of `gpus` GPUs, of the PodGroup `gang`, all of whose pods must share a value of the label `level`.

    `notes` are further annotations, `labels` those that its node must have.
    """
    asks = {"cpu": "1", "memory": "4Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec: dict[str, Any] = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": asks, "limits": asks}}],
    }
    notes = dict(notes or {})
    if node:
        spec["nodeName"] = node
    if labels:
        spec["nodeSelector"] = dict(labels)
    if gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    if level:
        notes["scheduling.kant.dev/topology-required"] = level
    return encoded("v1", "Pod", name, spec=spec, annotations=notes)


def pod_group(name: str, size: int, level: str = "") -> bytes:
    """An upstream PodGroup that is bound whole or not at all."""
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": size}}}
    if level:
        spec["schedulingConstraints"] = {"topology": [{"key": level}]}
    return encoded(GROUP, "PodGroup", name, spec=spec)


def encoded(
    version: str, kind: str, name: str, labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None, **rest: Any,
) -> bytes:  # fmt: skip
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return msgspec.json.encode({"apiVersion": version, "kind": kind, "metadata": meta, **rest})


class Meta(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""


class Spec(Struct, rename="camel"):
    node_name: str = ""


class Condition(Struct):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class Status(Struct):
    conditions: list[Condition] = []


class Seen(Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status | str = msgspec.field(default_factory=Status)


class Change(Struct):
    type: str
    object: Seen


class Page(Struct):
    metadata: Meta
    items: list[Seen]


async def changes(
    api: Api, selector: str, opened: asyncio.Event | None = None, path: str = PODS
) -> AsyncIterator[tuple[float, Change]]:
    """What happens to the pods of a field selector, with the time of its arrival; `path` is that of the pods.

    The API server ends a watch that it could not write to for some milliseconds: it is opened again where it ended.
    """
    decoder = msgspec.json.Decoder(Change)
    _, body = await api.send("GET", f"{path}?fieldSelector={quote(selector)}")
    page = msgspec.json.decode(body, type=Page)
    version = page.metadata.resource_version
    for each in page.items:
        yield time.monotonic(), Change("ADDED", each)
    while True:
        query = {"watch": "1", "fieldSelector": selector, "resourceVersion": version}
        async with api.session.get(path, params=query, read_bufsize=1 << 20) as reply:
            if opened is not None:
                opened.set()
            rest = b""
            async for chunk in reply.content.iter_any():
                now = time.monotonic()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    change = decoder.decode(line)
                    if change.type == "ERROR":
                        raise RuntimeError(f"the watch of the benchmark ended: {line[:300]!r}")
                    version = change.object.metadata.resource_version
                    yield now, change


@dataclass
class Watch:
    """When each pod was first seen bound, and to which node; and when it first had a reason why it is not."""

    api: Api
    bound: dict[str, tuple[float, str]] = field(default_factory=dict)
    reasons: dict[str, tuple[float, str]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def start(self, unbound: bool = False) -> None:
        """Watch pods that are bound; with `unbound`, those that are not, for their reasons."""
        opened = asyncio.Event()
        self.task = asyncio.create_task(self._read(opened, "spec.nodeName=" if unbound else "spec.nodeName!="))
        await opened.wait()

    async def _read(self, opened: asyncio.Event, selector: str) -> None:
        try:
            async for now, change in changes(self.api, selector, opened):
                self._note(change.object, now)
                self.news.set()
        finally:
            self.news.set()

    def _note(self, seen: Seen, now: float) -> None:
        name = seen.metadata.name
        if seen.spec.node_name:
            self.bound.setdefault(name, (now, seen.spec.node_name))
        for each in seen.status.conditions if isinstance(seen.status, Status) else ():
            if each.type == "PodScheduled" and each.status == "False":
                self.reasons.setdefault(name, (now, f"{each.reason}: {each.message}"))

    async def until(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Wait until `enough()` or until nothing has been bound for `seconds`; whether it was enough."""
        while not enough():
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), seconds)
            except TimeoutError:
                return False
            if self.task is not None and self.task.done():
                self.task.result()
        return True

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await self.task

    def overfull(self) -> list[str]:
        """Nodes to which more pods of one GPU were bound than they have GPUs."""
        used: dict[str, int] = {}
        for _, node in self.bound.values():
            used[node] = used.get(node, 0) + 1
        return sorted(node for node, count in used.items() if count > SLOTS)
