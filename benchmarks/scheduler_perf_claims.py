"""The controller of ResourceClaims, as far as scheduler_perf needs it: no kube-controller-manager runs here.

Each pod that names a ResourceClaimTemplate gets a claim of its own. When the pod has gone its claim goes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from benchmarks.kubernetes_rig import Api

ROOT = "/apis/resource.k8s.io/v1"
MERGE = "application/merge-patch+json"
NAME_OF = "resource.kubernetes.io/pod-claim-name"
WORKERS = 8


class ClaimController:
    """`put` a pod when it comes or goes; `templates` are those of the workload, by namespace and name."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.templates: dict[tuple[str, str], dict[str, Any]] = {}
        self.made: dict[str, int] = {}  # by namespace: pods that have been seen to
        self._todo: asyncio.Queue[tuple[bool, str, str, str]] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]

    async def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def put(self, there: bool, namespace: str, pod: str, uid: str) -> None:
        if any(space == namespace for space, _ in self.templates):
            self._todo.put_nowait((there, namespace, pod, uid))

    async def settled(self, namespace: str, count: int) -> None:
        """Wait until so many pods of a namespace have their claims; not at all where it has no templates."""
        while any(space == namespace for space, _ in self.templates) and self.made.get(namespace, 0) < count:
            await asyncio.sleep(0.05)

    async def _work(self) -> None:
        while True:
            there, namespace, pod, uid = await self._todo.get()
            if there:
                await self._make(namespace, pod, uid)
                self.made[namespace] = self.made.get(namespace, 0) + 1
            else:
                await self._remove(namespace, pod)

    async def _make(self, namespace: str, name: str, uid: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        status, body = await self.api.send("GET", path)
        if status != 200:
            return
        statuses = []
        for each in msgspec.json.decode(body)["spec"].get("resourceClaims", ()):
            template = self.templates.get((namespace, each.get("resourceClaimTemplateName", "")))
            if template is not None:
                owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
                claim = {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {
                        "name": f"{name}-{each['name']}",
                        "annotations": {NAME_OF: each["name"]},
                        "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
                    },
                    "spec": template["spec"]["spec"],
                }
                await self._send("POST", f"{ROOT}/namespaces/{namespace}/resourceclaims", claim, (201, 409))
                statuses.append({"name": each["name"], "resourceClaimName": f"{name}-{each['name']}"})
        if statuses:
            change = {"status": {"resourceClaimStatuses": statuses}}
            await self._send("PATCH", f"{path}/status", change, (200, 404, 409))

    async def _remove(self, namespace: str, name: str) -> None:
        for space, _ in self.templates:
            if space == namespace:
                path = f"{ROOT}/namespaces/{namespace}/resourceclaims/{name}-resource"
                await self.api.send("DELETE", path)
                freed = {"status": {"reservedFor": None, "allocation": None}}
                await self._send("PATCH", f"{path}/status", freed, (200, 404, 409))
                await self._send("PATCH", path, {"metadata": {"finalizers": None}}, (200, 404, 409))

    async def _send(self, method: str, path: str, body: Any, fine: tuple[int, ...]) -> None:
        kind = MERGE if method == "PATCH" else "application/json"
        status, reply = await self.api.send(method, path, msgspec.json.encode(body), kind)
        if status not in fine:
            print(f"claims: {method} {path}: {status} {reply[:200]!r}", flush=True)
