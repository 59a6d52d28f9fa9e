"""HAMi's device plugin on all nodes, as far as the API server sees it."""

from __future__ import annotations

import asyncio

from tests.kube.api import Api, collection
from tests.kube.kubelet import Follower
from tests.kube.objects import Object

LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"


class HamiPlugin(Follower):
    """Gives the pod that the lock of a node names the devices that stand on it, `takes_s` after it was bound.

    `mistaken` has the pods for which the kubelet asked while the lock named another one: they would get its devices.
    """

    def __init__(self, api: Api, *, takes_s: float = 0.05) -> None:
        super().__init__(api)
        self.query = {"fieldSelector": "spec.nodeName!="}
        self.takes_s = takes_s
        self.given: list[str] = []
        self.mistaken: list[str] = []
        self._begun: set[str] = set()

    def see(self, kind: str, pod: Object) -> None:
        uid, notes = pod["metadata"]["uid"], pod["metadata"].get("annotations", {})
        if kind != "DELETED" and notes.get(PHASE) == "allocating" and uid not in self._begun:
            self._begun.add(uid)
            self.spawn(self._allocate(pod))

    async def _allocate(self, pod: Object) -> None:
        await asyncio.sleep(self.takes_s)
        meta, node = pod["metadata"], f"/api/v1/nodes/{pod['spec']['nodeName']}"
        lock = (await self.api.get(node))["metadata"]["annotations"].get(LOCK, "")
        if not lock.endswith(f",{meta['namespace']},{meta['name']}"):
            self.mistaken.append(meta["name"])
            return
        path = f"{collection('pods', meta['namespace'])}/{meta['name']}"
        done = {TO_ALLOCATE: ";" * meta["annotations"][TO_ALLOCATE].count(";"), PHASE: "success"}
        await self.ask(lambda: self.api.patch(path, {"metadata": {"annotations": done}}))
        await self.ask(lambda: self.api.patch(node, {"metadata": {"annotations": {LOCK: None}}}))
        self.given.append(meta["name"])
