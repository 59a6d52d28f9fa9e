"""Binding alone, as a process of its own: no decision, the next pod goes to the next node.

It binds by Kant's own client, so that it is the most that Kant could reach on the machine.

`python -m benchmarks.kubernetes_binder KUBECONFIG SCHEDULER CONNECTIONS events|silent` runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.kubernetes_load import NAMESPACE, Meta, changes
from benchmarks.kubernetes_rig import Api
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import load

EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"


def binding(pod: Meta, node: str) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": NAMESPACE, "uid": pod.uid},
            "target": {"kind": "Node", "name": node},
        }
    )


def event(pod: Meta, node: str, version: str = "events.k8s.io/v1") -> bytes:
    """The event that kube-scheduler posts for a pod that it has bound."""
    now = datetime.now(UTC)
    about = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": NAMESPACE, "uid": pod.uid}
    text = f"Successfully assigned {NAMESPACE}/{pod.name} to {node}"
    rest = (
        {"regarding": about, "note": text, "reportingController": "binder"}
        if version != "v1"
        else {"involvedObject": about, "message": text, "reportingComponent": "binder"}
    )
    return msgspec.json.encode(
        {
            "apiVersion": version,
            "kind": "Event",
            "metadata": {"name": f"{pod.name}.{int(now.timestamp() * 1e6):x}", "namespace": NAMESPACE},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reason": "Scheduled",
            "action": "Binding",
            "type": "Normal",
            "reportingInstance": "binder-0",
            **rest,
        }
    )


async def run(config: Path, scheduler: str, connections: int, events: bool) -> None:
    async with Api(config, 4) as api, ApiClient(load(config), concurrency=connections) as client:
        names = [each["metadata"]["name"] for each in (await api.get("/api/v1/nodes"))["items"]]
        pods: asyncio.Queue[tuple[Meta, str]] = asyncio.Queue()
        told: asyncio.Queue[tuple[Meta, str]] = asyncio.Queue()

        async def bind() -> None:
            while True:
                pod, node = await pods.get()
                try:
                    await client.bind(NAMESPACE, pod.name, pod.uid, node)
                except ApiError as error:
                    print(f"bind {pod.name}: {error}", flush=True)
                    continue
                if events:
                    told.put_nowait((pod, node))

        async def tell() -> None:
            while True:
                pod, node = await told.get()
                try:
                    await client.call("POST", EVENTS, event(pod, node))
                except ApiError as error:
                    print(f"event {pod.name}: {error}", flush=True)

        posters = connections // 2 if events else 0
        work = [asyncio.create_task(bind()) for _ in range(connections - posters)]
        work += [asyncio.create_task(tell()) for _ in range(posters)]
        turn = 0
        async for _, change in changes(api, f"spec.nodeName=,spec.schedulerName={scheduler}"):
            if change.type == "ADDED":
                pods.put_nowait((change.object.metadata, names[turn % len(names)]))
                turn += 1


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "events"))
