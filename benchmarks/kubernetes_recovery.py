"""A leader is killed (kill -9) while it binds, and another replica stands by: how long until everything is bound.

Both schedulers have their default Lease: 15 s, renewed every 2 s. What counts is from the kill on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.kubernetes_cases import STALL, probe
from benchmarks.kubernetes_load import NODES, PODS, Watch, nodes, pod
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import KANT, SCHEDULER, Rival, kant, kube_scheduler

LEASE_S = 15.0
GANGS, SIZE = 50, 8
ALL_PODS = GANGS * SIZE
"""Pods that are there in all."""
BEFORE = 40
"""Pods that the first leader binds before it is killed."""
STARTS: dict[str, Callable[[Plane, str], None]] = {
    KANT.name: lambda plane, name: kant(plane, name=name),
    SCHEDULER.name: lambda plane, name: kube_scheduler(plane, name, elects=True),
}


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill: to the first bind by the next leader, and to the last one; `bound`: before the kill."""

    first: float
    whole: float
    bound: int


def recover(rival: Rival) -> Recovery:
    """One kill, on a fresh control plane. Pods of Kant are in gangs of SIZE, those of kube-scheduler alone."""
    with Plane() as plane:
        start = STARTS[rival.name]
        asyncio.run(_nodes(plane))
        start(plane, rival.name)
        asyncio.run(probe(plane, rival))
        start(plane, "standby")
        time.sleep(2 * LEASE_S / 3)  # it has loaded what it needs, and sees who leads
        return asyncio.run(_recover(plane, rival))


async def _nodes(plane: Plane) -> None:
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes(100))


async def _recover(plane: Plane, rival: Rival) -> Recovery:
    notes = "scheduling.kant.dev/"
    async with Api(plane.config) as api:
        watch = Watch(api)
        await watch.start()
        bodies = [
            pod(
                f"pod-{i:05}", rival.scheduler,
                notes={f"{notes}pod-group": f"gang-{i // SIZE}", f"{notes}min-available": str(SIZE)},
            )
            for i in range(ALL_PODS)
        ]  # fmt: skip
        creating = asyncio.create_task(api.post_all(PODS, bodies))
        known = len(watch.bound)
        if not await watch.until(lambda: len(watch.bound) >= known + BEFORE, STALL):
            raise RuntimeError(f"{rival.name} bound {len(watch.bound)} pods, then none")
        plane.end(rival.name)
        killed, before = time.monotonic(), len(watch.bound)
        await creating
        if not await watch.until(lambda: len(watch.bound) >= known + len(bodies), STALL):
            raise RuntimeError(f"the standby of {rival.name} bound {len(watch.bound) - before} pods, then none")
        if watch.overfull():
            raise RuntimeError(f"more pods than GPUs on {watch.overfull()[0]}")
        await watch.stop()
        later = sorted(when for when, _ in watch.bound.values() if when > killed + 1.0)
        return Recovery(later[0] - killed, later[-1] - killed, before - known)
