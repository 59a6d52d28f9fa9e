"""One run of one rival on a fresh control plane: what was submitted, when the binds came, what each process cost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.kubernetes_load import NAMESPACE, NODES, POD_GROUPS, PODS, Watch, nodes, pod, pod_group
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import Rival

STALL = 60.0
"""Seconds without a new bind after which a run has failed."""
SETTLE = 10.0
"""Seconds in which the events of the last binds must come."""


@dataclass(frozen=True)
class Load:
    """`pods` pods of one GPU on `nodes` nodes, in gangs of `gang` (0: no gangs) within one value of `level`."""

    nodes: int
    pods: int
    gang: int = 0
    level: str = ""

    def bodies(self, scheduler: str) -> tuple[list[bytes], list[bytes]]:
        """The PodGroups and the pods, gang by gang."""
        gangs = self.pods // self.gang if self.gang else 0
        groups = [pod_group(f"gang-{i:04}", self.gang, self.level) for i in range(gangs)]
        return groups, [
            pod(
                f"pod-{i:05}", scheduler, gang=f"gang-{i // self.gang:04}" if self.gang else "", level=self.level,
            )
            for i in range(self.pods)
        ]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Times in seconds; `submit` and `submitted`: first and last pod created, `started`: the rival; from one clock."""

    load: Load
    submit: float
    submitted: float
    started: float
    first: float
    last: float
    events: int
    startup: dict[str, float]
    """CPU-seconds of each process before the first bind."""
    cpu: dict[str, float]
    """CPU-seconds of each process afterwards, until the last event."""
    peak_mib: float

    @property
    def rate(self) -> float:
        """Pods a second, from first to last bind."""
        return (self.load.pods - 1) / (self.last - self.first)

    @property
    def whole(self) -> float:
        """Seconds from the first pod created, or from the start of the rival if that was later, to the last bind."""
        return self.last - max(self.submit, self.started)

    def costs(self) -> str:
        """CPU-milliseconds for each pod."""
        parts = [f"{name} {1000 * value / self.load.pods:.2f}" for name, value in self.cpu.items()]
        return f"{', '.join(parts)}, together {1000 * sum(self.cpu.values()) / self.load.pods:.2f} CPU-ms a pod"


def backlog(rival: Rival, load: Load) -> Run:
    """All pods wait already when the rival starts: from first to last bind nothing else happens."""
    return run(rival, load, warm=False)


def arriving(rival: Rival, load: Load) -> Run:
    """The rival runs and has bound a pod already when the pods are submitted, as fast as they can be."""
    return run(rival, load, warm=True)


def run(rival: Rival, load: Load, warm: bool) -> Run:
    with Plane(gangs=bool(load.gang)) as plane:
        asyncio.run(_create(plane, [(NODES, nodes(load.nodes))]))
        groups, pods = load.bodies(rival.scheduler)
        if warm:
            started = time.monotonic()
            rival.start(plane)
            asyncio.run(probe(plane, rival))
            submit, submitted, seen, events, startup = asyncio.run(_bound(plane, load, (groups, pods)))
        else:
            submit, submitted = asyncio.run(_create(plane, [(POD_GROUPS, groups), (PODS, pods)]))
            started = time.monotonic()
            rival.start(plane)
            _, _, seen, events, startup = asyncio.run(_bound(plane, load, None))
        after = plane.cpu()
        times = sorted(when for name, (when, _) in seen.bound.items() if name != "probe")
        return Run(
            load, submit, submitted, started, times[0], times[-1], events, startup,
            {name: after[name] - startup.get(name, 0.0) for name in after},
            plane.peak_mib(rival.name),
        )  # fmt: skip


async def _create(plane: Plane, what: list[tuple[str, list[bytes]]]) -> tuple[float, float]:
    async with Api(plane.config) as api:
        begin = time.monotonic()
        for path, bodies in what:
            if bodies:
                begin = time.monotonic()
                await api.post_all(path, bodies)
        return begin, time.monotonic()


async def probe(plane: Plane, rival: Rival) -> None:
    """One pod, so that everything that is loaded or compiled at the first decision is there."""
    async with Api(plane.config) as api:
        watch = Watch(api)
        await watch.start()
        await api.post_all(PODS, [pod("probe", rival.scheduler, gpus=0)])
        if not await watch.until(lambda: "probe" in watch.bound, STALL):
            raise RuntimeError(f"{rival.name} did not bind a first pod:\n{_logs(plane)}")
        await watch.stop()
        await api.send("DELETE", f"{PODS}/probe?gracePeriodSeconds=0")
        await asyncio.sleep(1)


async def _bound(
    plane: Plane, load: Load, submit: tuple[list[bytes], list[bytes]] | None
) -> tuple[float, float, Watch, int, dict[str, float]]:
    """Watch until all is bound; with `submit`, create these PodGroups and pods meanwhile."""
    async with Api(plane.config) as api:
        watch = Watch(api)
        await watch.start()
        begin, startup, creating = time.monotonic(), plane.cpu(), None
        if submit is not None:
            creating = asyncio.create_task(_create(plane, [(POD_GROUPS, submit[0]), (PODS, submit[1])]))
        elif await watch.until(lambda: len(watch.bound) > 0, STALL):
            startup = plane.cpu()
        if not await watch.until(lambda: len(watch.bound) >= load.pods, STALL):
            raise RuntimeError(f"{len(watch.bound)} of {load.pods} pods were bound, then none:\n{_logs(plane)}")
        begin, end = await creating if creating else (begin, begin)
        if watch.overfull():
            raise RuntimeError(f"more pods than GPUs on {', '.join(watch.overfull()[:3])}")
        await watch.stop()
        return begin, end, watch, await events(api, load.pods), startup


async def events(api: Api, expected: int) -> int:
    """How many events there are, once they are as many as expected or no more come."""
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events?limit=1"
    count, since = 0, time.monotonic()
    while count < expected and time.monotonic() - since < SETTLE:
        page = await api.get(path)
        now = len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
        if now != count:
            count, since = now, time.monotonic()
        elif count == 0 and time.monotonic() - since > 2:
            break
        await asyncio.sleep(0.1)
    return count


def _logs(plane: Plane) -> str:
    return "\n".join(f"{name}: {plane.log(name, 5)}" for name in plane.pids() if name != "etcd")
