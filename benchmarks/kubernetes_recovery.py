"""A leader is killed (kill -9) while it binds, and another replica stands by: how long until it binds.

Half of the gangs are there then, the others come when nobody leads.

With the default Lease: 15 s, renewed every 2 s. What counts is from the kill on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.kubernetes_cases import STALL, probe
from benchmarks.kubernetes_load import NODES, PODS, SLOTS, Watch, nodes, pod
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import KANT, kant

LEASE_S = 15.0
GANGS, SIZE = 50, 8
ALL_PODS = GANGS * SIZE
"""Pods that are there in all."""
BEFORE = 40
"""Pods that the first leader binds before it is killed."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kant-system/leases/kant"


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill: to the first bind by the next leader, and to the last one; `bound`: before the kill."""

    first: float
    whole: float
    bound: int


def recover(many: int = 100, held: int = 0) -> Recovery:
    """One kill, on a fresh control plane of so many nodes, on which there are so many pods already."""
    with Plane() as plane:
        asyncio.run(_fill(plane, many, held))
        kant(plane)
        asyncio.run(probe(plane, KANT))
        kant(plane, name="standby")
        time.sleep(2 * LEASE_S / 3)  # it has loaded what it needs, and sees who leads
        return asyncio.run(_recover(plane))


async def _fill(plane: Plane, many: int, held: int) -> None:
    """Of each node some GPUs stay free."""
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes(many))
        where = ((i, f"node-{i % many:05}", int(i // many < SLOTS - 3)) for i in range(held))
        await api.post_all(PODS, [pod(f"held-{i:05}", KANT.scheduler, gpus, node) for i, node, gpus in where])


async def _recover(plane: Plane) -> Recovery:
    notes = "scheduling.kant.dev/"
    async with Api(plane.config) as api:
        watch = Watch(api)
        await watch.start()
        bodies = [
            pod(
                f"pod-{i:05}", KANT.scheduler,
                notes={f"{notes}pod-group": f"gang-{i // SIZE}", f"{notes}min-available": str(SIZE)},
            )
            for i in range(ALL_PODS)
        ]  # fmt: skip
        known, half = len(watch.bound), ALL_PODS // 2
        creating = asyncio.create_task(api.post_all(PODS, bodies[:half]))
        if not await watch.until(lambda: len(watch.bound) >= known + BEFORE, STALL):
            raise RuntimeError(f"Kant bound {len(watch.bound)} pods, then none")
        first = await _leader(api)
        plane.end(KANT.name)
        killed, before = time.monotonic(), len(watch.bound)
        await creating
        await api.post_all(PODS, bodies[half:])
        if not await watch.until(lambda: len(watch.bound) >= known + len(bodies), STALL):
            raise RuntimeError(f"the standby bound {len(watch.bound) - before} pods, then none")
        if await _leader(api) == first:
            raise RuntimeError("the replica that was killed did not lead")
        over = [] if known else watch.overfull()
        if over:
            raise RuntimeError(f"more pods than GPUs on {over[0]}")
        await watch.stop()
        times = sorted(when for when, _ in watch.bound.values())
        later = [when for when in times if when > killed + LEASE_S / 2]  # before that comes what it had sent
        return Recovery(later[0] - killed, later[-1] - killed, before - known)


async def _leader(api: Api) -> str:
    return str((await api.get(LEASE))["spec"]["holderIdentity"])
