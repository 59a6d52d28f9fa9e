"""A cluster in which nothing is to be decided: kubelets report their nodes, their Leases and the pods of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count, islice

import msgspec

from benchmarks.kubernetes_cases import probe
from benchmarks.kubernetes_load import NODES, PODS, nodes, pod
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import KANT, Rival, kant

NODE_COUNT, POD_COUNT = 1_000, 5_000
EVERY, POD_EVERY = 10.0, 60.0
"""Seconds after which a kubelet reports its node and renews its Lease, and after which it reports a pod again."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STANDBY = "standby"

Request = tuple[str, str, bytes]


def cpu_a_minute(rival: Rival, seconds: float) -> dict[str, float]:
    """CPU-seconds for the reports of a minute: of the scheduler, and of Kant's replica that stands by.

    A busy machine takes longer than `seconds` for the reports of so long, and they cost the same.
    """
    with Plane() as plane:
        asyncio.run(_fill(plane))
        rival.start(plane)
        asyncio.run(probe(plane, rival))
        if rival is KANT:
            kant(plane, name=STANDBY)
        time.sleep(15)  # until the replica stands by, and the Event of the probe is posted
        before = plane.cpu()
        asyncio.run(_beat(plane, seconds))
        after = plane.cpu()
        return {name: 60 * (after[name] - before[name]) / seconds for name in (rival.name, STANDBY) if name in after}


async def _fill(plane: Plane) -> None:
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes(NODE_COUNT))
        where = (f"node-{i % NODE_COUNT:05}" for i in range(POD_COUNT))
        await api.post_all(PODS, [pod(f"pod-{i:05}", "other", i % 2, node) for i, node in enumerate(where)])
        await api.send("POST", "/api/v1/namespaces", msgspec.json.encode({"metadata": {"name": "kube-node-lease"}}))
        await api.post_all(LEASES, [_lease(i) for i in range(NODE_COUNT)])
        await api.do_all([_pod_beat(i, "first") for i in range(POD_COUNT)])


def _lease(node: int) -> bytes:
    name = f"node-{node:05}"
    return msgspec.json.encode({"metadata": {"name": name}, "spec": {"holderIdentity": name}})


def _beats() -> Iterator[list[Request]]:
    """What kubelets say in each tenth of a second."""
    node_beats, pod_beats = (int(many / every / 10) for many, every in ((NODE_COUNT, EVERY), (POD_COUNT, POD_EVERY)))
    nodes_on, pods_on = count(), count()
    while True:
        requests: list[Request] = []
        for beat in islice(nodes_on, node_beats):
            name, now = f"node-{beat % NODE_COUNT:05}", time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now[:19] + "Z"}
            requests.append(_patch(f"{NODES}/{name}/status", {"status": {"conditions": [ready]}}))
            requests.append(_patch(f"{LEASES}/{name}", {"spec": {"renewTime": now}}))
        for beat in islice(pods_on, pod_beats):
            requests.append(_pod_beat(beat % POD_COUNT, f"beat {beat}"))
        yield requests


def _pod_beat(number: int, message: str) -> Request:
    ready = {"type": "Ready", "status": "True", "message": message}
    return _patch(f"{PODS}/pod-{number:05}/status", {"status": {"phase": "Running", "conditions": [ready]}})


def _patch(path: str, body: object) -> Request:
    return "PATCH", path, msgspec.json.encode(body)


async def _beat(plane: Plane, seconds: float) -> None:
    """Report as kubelets do in so many seconds, and no faster."""
    async with Api(plane.config) as api:
        begin = time.monotonic()
        for turn, requests in zip(range(round(10 * seconds)), _beats(), strict=False):
            await api.do_all(requests)
            await asyncio.sleep(max(0.0, begin + (turn + 1) / 10 - time.monotonic()))
