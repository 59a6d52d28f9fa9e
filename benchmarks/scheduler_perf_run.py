"""One workload of scheduler_perf run for one scheduler on a fresh control plane, op by op."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from benchmarks.kubernetes_load import Change, Status, changes
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import Rival, path_of
from benchmarks.scheduler_perf_claims import ClaimController
from benchmarks.scheduler_perf_files import Object, Workload, rendered
from benchmarks.scheduler_perf_ops import for_scheduler, nodes, pods, resource_slice, volumes

PODS = "/api/v1/pods"
STALL = 45.0
"""Seconds without a new bind after which a run has failed, or the scheduler has refused the rest."""
SETTLE = 10.0
"""Seconds in which the Events of the last binds must come."""
FLAGS = ("--disable-admission-plugins=Priority",)
"""Pods of the files have a priority and no class, as scheduler_perf's own API server allows it."""
OLD_DEVICES = "--runtime-config=resource.k8s.io/v1beta2=true"
"""Templates of the topics below dra are written in this version."""


class RefusedError(Exception):
    """The scheduler did not bind what a workload asked for; the sentence has the reason that its pods were given."""


@dataclass
class Pods:
    """What became of each pod, by namespace and name."""

    bound: dict[str, dict[str, float]] = field(default_factory=dict)
    """When each was first seen on a node, by namespace."""
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why each is not, where that was said."""
    alive: dict[str, dict[str, str]] = field(default_factory=dict)
    """The node of each pod that is there, by namespace; "" for none."""

    def note(self, change: Change, now: float) -> None:
        meta, seen = change.object.metadata, change.object
        space, name = meta.namespace, meta.name
        if change.type == "DELETED":
            self.alive.get(space, {}).pop(name, None)
            return
        self.alive.setdefault(space, {})[name] = seen.spec.node_name
        if seen.spec.node_name:
            self.bound.setdefault(space, {}).setdefault(name, now)
        for each in seen.status.conditions if isinstance(seen.status, Status) else ():
            if each.type == "PodScheduled" and each.status == "False":
                self.reasons.setdefault(space, {})[name] = f"{each.reason}: {each.message}"

    def on_nodes(self, space: str) -> int:
        return sum(1 for node in self.alive.get(space, {}).values() if node)

    def attempted(self, space: str) -> int:
        told, alive = self.reasons.get(space, {}), self.alive.get(space, {})
        return sum(1 for name, node in alive.items() if node or name in told)

    def why(self, space: str) -> str:
        """The reason that most of those who wait were given."""
        alive = self.alive.get(space, {})
        told = Counter(text for name, text in self.reasons.get(space, {}).items() if not alive.get(name, ""))
        return told.most_common(1)[0][0] if told else "no reason was given"


@dataclass(frozen=True)
class Measured:
    """What one run has shown; times in seconds."""

    pods: int
    first: float
    last: float
    created: float
    """From the first measured pod created to the last one."""
    cpu: dict[str, float]
    """CPU-seconds of each process while the pods were bound, until the last Event."""
    others: float
    """The part of the machine that processes of others used meanwhile."""

    @property
    def rate(self) -> float:
        """Pods a second, from first to last bind."""
        return (self.pods - 1) / max(self.last - self.first, 1e-3)

    def cpu_ms(self, name: str = "") -> float:
        """CPU-milliseconds a pod of one process, or of all."""
        spent = self.cpu[name] if name else sum(self.cpu.values())
        return 1000 * spent / self.pods


def run(workload: Workload, rival: Rival, *, waiting: bool = False) -> Measured:
    """Raises RefusedError. With `waiting` the scheduler stands still until all pods that are measured are there."""
    flags = (*FLAGS, OLD_DEVICES) if "/" in workload.topic else FLAGS
    with Plane(features=workload.gates, flags=flags) as plane:
        rival.start(plane)
        return asyncio.run(_run(plane, workload, rival, waiting))


async def _run(plane: Plane, workload: Workload, rival: Rival, waiting: bool) -> Measured:
    async with Api(plane.config, 30) as api:
        return await Runner(plane, api, workload, rival, waiting).run()


class Runner:
    """The ops of one workload in their order. What goes on in the background ends with it."""

    def __init__(self, plane: Plane, api: Api, workload: Workload, rival: Rival, waiting: bool) -> None:
        self.plane, self.api, self.workload, self.rival, self.waiting = plane, api, workload, rival, waiting
        self.pods = Pods()
        self.claims = ClaimController(api)
        self.news = asyncio.Event()
        self.expected: dict[str, int] = {}
        """Pods that a barrier waits for, by namespace."""
        self.nodes: list[str] = []
        self.spaces: set[str] = set()
        self.background: list[asyncio.Task[None]] = []
        self.measured: Measured | None = None
        self._collecting: tuple[dict[str, float], tuple[float, float], list[str]] | None = None
        self._probed = False

    async def run(self) -> Measured:
        opened = asyncio.Event()
        watching = asyncio.create_task(self._watch(opened))
        await opened.wait()
        self.claims.start()
        try:
            for number, op in enumerate(self.workload.ops):
                doing = asyncio.create_task(self.op(number, op))
                await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                await doing
        finally:
            for task in (*self.background, watching):
                task.cancel()
            await asyncio.gather(*self.background, watching, return_exceptions=True)
            await self.claims.stop()
        if self.measured is None:
            raise RuntimeError(f"{self.workload.title} measures nothing")
        return self.measured

    async def _watch(self, opened: asyncio.Event) -> None:
        async for now, change in changes(self.api, "", opened, PODS):
            there = change.type != "DELETED"
            meta = change.object.metadata
            if change.type in ("ADDED", "DELETED"):
                self.claims.put(there, meta.namespace, meta.name, meta.uid)
            self.pods.note(change, now)
            self.news.set()

    async def op(self, number: int, op: Object) -> None:
        """Carry one out, by its name. Raises RuntimeError for one that this runner does not know."""
        ops: dict[str, Callable[[int, Object], Awaitable[None]]] = {
            "createNodes": self.create_nodes,
            "createNamespaces": self.create_namespaces,
            "createPods": self.create_pods,
            "createPodSets": self.create_pod_sets,
            "deletePods": self.delete_pods,
            "createAny": self.create_any,
            "createResourceDriver": self.create_driver,
            "allocResourceClaims": self.allocate_claims,
            "churn": self.churn,
            "barrier": self.barrier,
            "sleep": self.sleep,
            "startCollectingMetrics": self.start_collecting,
            "stopCollectingMetrics": self.stop_collecting,
        }
        if op["opcode"] not in ops:
            raise RuntimeError(f"{self.workload.title}: expected an op among {', '.join(ops)}, got {op['opcode']}")
        await ops[op["opcode"]](number, op)

    # --- what is created ---------------------------------------------------------------------------------------------

    async def create_nodes(self, number: int, op: Object) -> None:
        made = list(nodes(op, number, len(self.nodes), self.workload))
        await self.api.post_all("/api/v1/nodes", [msgspec.json.encode(node) for node, _ in made])
        storage = [msgspec.json.encode(each) for _, each in made if each is not None]
        await self.api.post_all("/apis/storage.k8s.io/v1/csinodes", storage)
        self.nodes += [node["metadata"]["name"] for node, _ in made]

    async def create_namespaces(self, number: int, op: Object) -> None:
        path = op.get("namespaceTemplatePath")
        for i in range(int(op["count"])):
            thing = rendered(self.workload.template(path)) if path else {}
            await self._space(f"{op['prefix']}-{i}", thing.get("metadata", {}).get("labels"))

    async def _space(self, name: str, labels: dict[str, str] | None = None) -> None:
        if name not in self.spaces:
            self.spaces.add(name)
            meta = {"name": name, "labels": labels or {}}
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
            await self._post("/api/v1/namespaces", body)

    async def create_any(self, _: int, op: Object) -> None:
        space, count = op.get("namespace", ""), int(op.get("count", 1))
        if space:
            await self._space(space)
        text = self.workload.template(op["templatePath"])
        for i in range(count):
            thing = for_scheduler(rendered(text, i, count), self.rival.scheduler)
            if space:
                thing["metadata"]["namespace"] = space
            if thing["kind"] == "ResourceClaimTemplate":
                self.claims.templates[space, thing["metadata"]["name"]] = thing
            await self._post(await path_of(self.api, thing), thing)

    async def create_driver(self, _: int, op: Object) -> None:
        names = [name for name in self.nodes if fnmatch(name, op["nodes"])]
        slices = [resource_slice(op["driverName"], name, int(op["maxClaimsPerNode"])) for name in names]
        await self.api.post_all("/apis/resource.k8s.io/v1/resourceslices", [msgspec.json.encode(s) for s in slices])

    async def allocate_claims(self, _: int, op: Object) -> None:
        listed = await self.api.get(f"/apis/resource.k8s.io/v1/namespaces/{op['namespace']}/resourceclaims")
        if listed["items"]:
            raise RuntimeError(f"{self.workload.title}: expected no claims to allocate, which this runner cannot")

    async def create_pod_sets(self, number: int, op: Object) -> None:
        for i in range(int(op["count"])):
            await self.create_pods(number, {**op["createPodsOp"], "namespace": f"{op['namespacePrefix']}-{i}"})

    async def create_pods(self, number: int, op: Object) -> None:
        space, count = op.get("namespace", f"namespace-{number}"), int(op["count"])
        await self._probe()
        await self._space(space)
        if op.get("persistentVolumeClaimTemplatePath"):
            await self._create_volumes(space, count, op)
        bodies = list(pods(op, count, self.rival.scheduler, self.workload))
        collects, path = op.get("collectMetrics", False), f"/api/v1/namespaces/{space}/pods"
        stand = collects and self.waiting
        if collects:
            for earlier, found in list(self.pods.bound.items()):
                await self._events(earlier, len(found))
        if stand:
            self.plane.pause(self.rival.name)
        elif collects:
            self._begin([space])
        began, had = time.monotonic(), self.claims.made.get(space, 0)
        await self.api.post_all(path, bodies)
        created = time.monotonic() - began
        if stand:
            await self.claims.settled(space, had + count)
            self._begin([space])
            self.plane.resume(self.rival.name)
        if op.get("skipWaitToCompletion"):
            self.expected[space] = self.expected.get(space, 0) + count
        elif op.get("steadyState"):
            count = await self._steadily(space, path, bodies, float(str(op["duration"]).removesuffix("s")))
        else:
            await self._until(space, lambda: self.pods.on_nodes(space) >= count, count)
        if collects:
            await self._end(count, created)

    async def _steadily(self, space: str, path: str, bodies: list[bytes], seconds: float) -> int:
        """Delete the pods when all are bound and create them again, for so long; how many were bound."""
        end, count = time.monotonic() + seconds, 0
        while True:
            await self._until(space, lambda: self.pods.on_nodes(space) >= len(bodies), len(bodies))
            count += len(bodies)
            if time.monotonic() > end:
                return count
            query = "gracePeriodSeconds=0&propagationPolicy=Background"
            await self.api.send("DELETE", f"{path}?{query}")
            while self.pods.alive.get(space):
                self.news.clear()
                await asyncio.wait_for(self.news.wait(), STALL)
            await self.api.post_all(path, bodies)

    async def _create_volumes(self, space: str, count: int, op: Object) -> None:
        made = list(volumes(op, space, count, self.workload))
        claims = f"/api/v1/namespaces/{space}/persistentvolumeclaims"
        await self.api.post_all(claims, [msgspec.json.encode(claim) for _, claim in made])
        await self.api.post_all("/api/v1/persistentvolumes", [msgspec.json.encode(volume) for volume, _ in made])
        bound = msgspec.json.encode({"status": {"phase": "Bound"}})
        paths = [
            path
            for volume, claim in made
            for path in (
                f"{claims}/{claim['metadata']['name']}",
                f"/api/v1/persistentvolumes/{volume['metadata']['name']}",
            )
        ]
        await self.api.do_all([("PATCH", f"{path}/status", bound) for path in paths])

    async def _post(self, path: str, thing: Object) -> str:
        status, reply = await self.api.send("POST", path, msgspec.json.encode(thing))
        if status not in (200, 201, 409):
            raise RuntimeError(f"POST {path}: {status} {reply[:300]!r}")
        return str(msgspec.json.decode(reply).get("metadata", {}).get("name", ""))

    # --- what goes on ------------------------------------------------------------------------------------------------

    async def delete_pods(self, _: int, op: Object) -> None:
        space, pace = op["namespace"], float(op.get("deletePodsPerSecond", 0))
        names = list(self.pods.alive.get(space, {}))

        async def delete() -> None:
            for name in names:
                if pace:
                    await asyncio.sleep(1 / pace)
                await self.api.send("DELETE", f"/api/v1/namespaces/{space}/pods/{name}")

        if op.get("skipWaitToCompletion"):
            self.background.append(asyncio.create_task(delete()))
        else:
            await delete()

    async def churn(self, number: int, op: Object) -> None:
        await self._probe()
        space = op.get("namespace", f"namespace-{number}")
        await self._space(space)
        things = [
            for_scheduler(rendered(self.workload.template(path)), self.rival.scheduler) for path in op["templatePaths"]
        ]
        paths = []
        for thing in things:
            thing["metadata"]["namespace"] = space
            paths.append(await path_of(self.api, thing))
            if thing["kind"] == "Node":
                thing["metadata"].pop("namespace")
        self.background.append(asyncio.create_task(self._churn(op, list(zip(paths, things, strict=True)))))

    async def _churn(self, op: Object, things: list[tuple[str, Object]]) -> None:
        wait, most, recreate = int(op.get("intervalMilliseconds", 500)) / 1000, int(op.get("number", 0)), op["mode"]
        there: dict[tuple[int, int], str] = {}
        round_ = 0
        while recreate == "recreate" or not most or round_ < most:
            await asyncio.sleep(wait)
            for i, (path, thing) in enumerate(things):
                place = (i, round_ % most) if recreate == "recreate" else (i, round_)
                if name := there.pop(place, ""):
                    await self.api.send("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
                else:
                    there[place] = await self._post(path, thing)
            round_ += 1

    async def barrier(self, _: int, op: Object) -> None:
        for space in op.get("namespaces") or list(self.expected):
            count = self.expected[space]
            if op.get("stageRequirement") == "Attempted":
                await self._attempted(space, count)
            else:
                await self._until(space, lambda s=space, n=count: self.pods.on_nodes(s) >= n, count)  # type: ignore[misc]
                del self.expected[space]

    async def _attempted(self, space: str, count: int) -> None:
        """Gated pods have their condition from the API server; no scheduler says more of them."""
        await self._until(space, lambda: self.pods.attempted(space) >= count, count)

    async def sleep(self, _: int, op: Object) -> None:
        await asyncio.sleep(float(str(op["duration"]).removesuffix("s")))

    async def start_collecting(self, _: int, op: Object) -> None:
        await self._probe()
        self._begin(list(op["namespaces"]))

    async def stop_collecting(self, _: int, op: Object) -> None:
        assert self._collecting is not None
        await self._end(sum(len(self.pods.bound.get(space, {})) for space in self._collecting[2]), 0.0)

    # --- what is measured --------------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        """One pod before the first, so that what a scheduler loads or compiles at its first decision is there."""
        if self._probed or not self.nodes:
            return
        self._probed = True
        await self._space("probe")
        meta, pause = {"name": "probe"}, {"name": "pause", "image": "registry.k8s.io/pause:3.10.1"}
        spec = {"containers": [pause], "schedulerName": self.rival.scheduler, "terminationGracePeriodSeconds": 0}
        await self._post(
            "/api/v1/namespaces/probe/pods", {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}
        )
        await self._until("probe", lambda: self.pods.on_nodes("probe") == 1, 1, patience=3 * STALL)
        await self.api.send("DELETE", "/api/v1/namespaces/probe/pods/probe?gracePeriodSeconds=0")
        await asyncio.sleep(1)

    def _begin(self, spaces: list[str]) -> None:
        self._collecting = (self._cpu(), machine(), spaces)

    async def _end(self, count: int, created: float) -> None:
        assert self._collecting is not None
        before, machine_before, spaces = self._collecting
        times = sorted(t for space in spaces for t in self.pods.bound.get(space, {}).values())
        for space in spaces:
            await self._events(space, count)
        after, (busy, whole) = self._cpu(), machine()
        spent = {name: after[name] - before.get(name, 0.0) for name in after}
        ours = sum(spent.values())
        others = max(busy - machine_before[0] - ours, 0.0) / max(whole - machine_before[1], 1e-3)
        cpu = {name: value for name, value in spent.items() if name != "rig"}
        if not times:
            raise RuntimeError(f"{self.workload.title} measures no pods")
        self.measured = Measured(count, times[0], times[-1], created, cpu, others)

    def _cpu(self) -> dict[str, float]:
        return {**self.plane.cpu(), "rig": time.process_time()}

    async def _until(self, space: str, enough: Callable[[], bool], count: int, patience: float = STALL) -> None:
        """Wait until it is enough; raises RefusedError where no pod of the namespace has been bound for a while."""
        known, since = -1, time.monotonic()
        while not enough():
            self.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), 1.0)
            now, have = time.monotonic(), len(self.pods.bound.get(space, {}))
            if have != known:
                known, since = have, now
            elif now - since > patience:
                why = self.pods.why(space)
                raise RefusedError(f"{have} of {count} pods bound, then none for {patience:.0f} s: {why}")

    async def _events(self, space: str, count: int) -> None:
        """Wait for the Events of the pods, which cost CPU time too: until they are there, or no more come."""
        path = f"/apis/events.k8s.io/v1/namespaces/{space}/events?limit=1"
        known, since, end = -1, time.monotonic(), time.monotonic() + 4 * SETTLE
        while time.monotonic() < end:
            page = await self.api.get(path)
            have = len(page["items"]) + page["metadata"].get("remainingItemCount", 0)
            if have >= count or (have == known and time.monotonic() - since > SETTLE / 5):
                return
            if have != known:
                known, since = have, time.monotonic()
            await asyncio.sleep(0.2)


def machine() -> tuple[float, float]:
    """CPU-seconds in which the machine was busy so far, and all that it had."""
    words = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    whole = sum(ticks)
    return whole - ticks[3] - ticks[4], whole
