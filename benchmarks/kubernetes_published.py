"""The loads by which Kueue and KAI-Scheduler publish their speed, decided by Kant on a real API server.

`python -m benchmarks.kubernetes_published [CASE …] [--part N]`; the cases are the keys of `CASES`. With `--part` only
an N-th of the workloads (Kueue) or of the cluster and its jobs (KAI) is tried, beside no published figure.

Nodes are fake, as kwok's are:
pods are bound to them, and this process ends them.

Kueue's own rig has no nodes and no pods: a workload is one object, admitted by one write. Here a workload is its pods,
each created, bound, ended and counted against its queue. A workload that is evicted is created again, as its
controller would.

Sources: Kueue, test/performance/scheduler/configs/{baseline,large-scale,tas}; KAI-Scheduler, test/e2e/scale and
docs/scale-tests.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.kubernetes_cases import probe
from benchmarks.kubernetes_load import NODES, PODS, Change, changes, encoded
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import KANT, install, kant
from benchmarks.measure import Figure

OWN = "scheduling.kant.dev"
QUEUES = f"/apis/{OWN}/v1alpha1/queues"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RACK, BLOCK, ZONE = (f"cloud.provider.com/topology-{level}" for level in ("rack", "block", "zone"))
FOREVER = float("inf")
PROFILE = """
name = "published"
order = { policy = "fifo" }
discipline = { policy = "backfill" }
placement = { policy = "kant" }
preemption = { reclaim = "nominal", min_run_s = 0 }
requeue = { base_s = 1 }
"""
STALL = 120.0
"""Seconds without any change after which a run has failed."""


@dataclass(frozen=True)
class Kind:
    """Workloads of one class: `count` in each queue, one every `every` seconds, each of so many pods.

    A workload runs for `runs` seconds from when all its pods are bound. `notes` are annotations of its pods.
    """

    name: str
    count: int
    every: float
    runs: float
    priority: int
    asks: dict[str, str]
    pods: int = 1
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """A queue below `parent`, with a quota of one resource, and what is submitted to it."""

    name: str
    parent: str = ""
    resource: str = "cpu"
    nominal: int = 0
    borrowing: int | None = None
    kinds: tuple[Kind, ...] = ()

    def body(self) -> bytes:
        quota = {"resource": self.resource, "nominal": self.nominal}
        quota |= {} if self.borrowing is None else {"borrowingLimit": self.borrowing}
        spec: dict[str, Any] = {"quotas": [quota]} | ({"parent": self.parent} if self.parent else {})
        return encoded(f"{OWN}/v1alpha1", "Queue", self.name, spec=spec)


@dataclass
class Workload:
    """One workload: what it is, and what has become of it. Times are of one clock, -1 where it has not come to that."""

    name: str
    queue: str
    kind: Kind
    created: float = -1.0
    admitted: float = -1.0
    bound: set[str] = field(default_factory=set)
    evicted: int = 0
    over: bool = False

    def pods(self) -> list[str]:
        return [f"{self.name}-{i}" for i in range(self.kind.pods)]

    def body(self, pod: str) -> bytes:
        """A pod of it, which its controller would create again."""
        notes = {f"{OWN}/queue": self.queue, f"{OWN}/preemptible": "true", **self.kind.notes}
        if self.kind.pods > 1:
            notes |= {f"{OWN}/pod-group": self.name, f"{OWN}/min-available": str(self.kind.pods)}
        resources = {"requests": self.kind.asks, "limits": self.kind.asks}
        spec = {
            "schedulerName": KANT.scheduler,
            "priorityClassName": f"priority-{self.kind.priority}",
            "containers": [{"name": "main", "image": "pause", "resources": resources}],
        }
        return encoded("v1", "Pod", pod, labels={}, annotations=notes, spec=spec)


class Rig:
    """Creates workloads when they are due, ends those that have run, and notes when each was admitted."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.workloads: dict[str, Workload] = {}
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(api.connections)

    async def play(self, workloads: Sequence[tuple[float, Workload]]) -> float:
        """Submit each when it is due, in seconds from now. Returns when the first was created."""
        began = time.monotonic()
        for due, one in sorted(workloads, key=lambda each: each[0]):
            self.workloads[one.name] = one
            wait = began + due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            while len(self._tasks) > 4 * self.api.connections:
                await asyncio.sleep(0.001)
            one.created = time.monotonic()
            self._spawn(self._create(one, one.pods()))
        return began

    async def _create(self, one: Workload, pods: list[str]) -> None:
        for pod in pods:
            await self._send("POST", PODS, one.body(pod), (201,))

    async def _send(self, method: str, path: str, body: bytes | None, expected: tuple[int, ...]) -> None:
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        async with self._gate:
            status, reply = await self.api.send(method, path, body, kind)
        if status not in expected:
            raise RuntimeError(f"{method} {path}: {status} {reply[:300]!r}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def follow(self, opened: asyncio.Event) -> None:
        """Take in what happens to pods, for ever."""
        async for now, change in changes(self.api, "", opened):
            self._see(change, now)
            self.changed.set()

    def _see(self, change: Change, now: float) -> None:
        pod = change.object.metadata
        one = self.workloads.get(pod.name.rpartition("-")[0])
        if one is None or one.over:
            return
        if change.type == "DELETED":
            one.bound.discard(pod.name)
            one.evicted += 1
            self._spawn(self._create(one, [pod.name]))
        elif pod.deletion_timestamp:
            self._spawn(self._send("DELETE", f"{PODS}/{pod.name}?gracePeriodSeconds=0", None, (200, 404)))
        elif change.object.spec.node_name and pod.name not in one.bound:
            one.bound.add(pod.name)
            if len(one.bound) == one.kind.pods:
                one.admitted = now if one.admitted < 0 else one.admitted
                if one.kind.runs < FOREVER:
                    self._spawn(self._end(one, one.evicted))

    async def _end(self, one: Workload, evicted: int) -> None:
        """The workload has run, unless it was evicted meanwhile."""
        await asyncio.sleep(one.kind.runs)
        if one.evicted == evicted and len(one.bound) == one.kind.pods:
            one.over = True
            for pod in one.pods():
                body = msgspec.json.encode({"status": {"phase": "Succeeded"}})
                await self._send("PATCH", f"{PODS}/{pod}/status", body, (200, 404))
            self.changed.set()

    def close(self) -> None:
        """Let what is under way be."""
        for task in list(self._tasks):
            task.remove_done_callback(self._done)
            task.cancel()

    async def until(self, enough: Callable[[], bool]) -> float:
        """Wait for `enough()`; returns when that was. Raises RuntimeError where nothing changes for `STALL` seconds."""
        while not enough():
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), STALL)
            except TimeoutError:
                waiting = [one.name for one in self.workloads.values() if one.admitted < 0]
                raise RuntimeError(
                    f"{len(waiting)} workloads wait, such as {waiting[:3]}, and nothing happens"
                ) from None
        return time.monotonic()


# --- Kueue --------------------------------------------------------------------------------------------------------


def cpu(milli: int) -> dict[str, str]:
    return {"cpu": f"{milli}m"}


BASELINE = (
    Kind("small", 350, 0.1, 0.2, 50, cpu(1000)),
    Kind("medium", 100, 0.5, 0.5, 100, cpu(5000)),
    Kind("large", 50, 1.2, 1.0, 200, cpu(20_000)),
)
LARGE_SCALE = (
    Kind("small", 35, 0.06, 0.15, 50, cpu(1000)),
    Kind("medium", 11, 0.3, 0.35, 100, cpu(5000)),
    Kind("large", 4, 0.7, 0.7, 200, cpu(20_000)),
)


def _by_rack() -> Iterator[Kind]:
    """Kueue's workloads with a topology: each a gang that requires a rack, prefers one, or is balanced over racks."""
    sizes = (
        ("small", 0.1, 0.2, 50, 500, 2, 1, (120, 120, 110)),
        ("medium", 0.5, 0.5, 100, 1250, 4, 2, (34, 33, 33)),
        ("large", 1.2, 1.0, 200, 2500, 8, 4, (17, 17, 16)),
    )
    for name, every, runs, priority, milli, pods, piece, counts in sizes:
        wishes = (
            ("required", {"kueue.x-k8s.io/podset-required-topology": RACK}),
            ("preferred", {"kueue.x-k8s.io/podset-preferred-topology": RACK}),
            ("balanced", {
                "kueue.x-k8s.io/podset-slice-required-topology": RACK, "kueue.x-k8s.io/podset-slice-size": str(piece),
            }),
        )  # fmt: skip
        for (wish, notes), count in zip(wishes, counts, strict=True):
            yield Kind(f"{name}-{wish}", count, every, runs, priority, cpu(milli), pods, notes)


def kueue(cohorts: int, queues: int, kinds: Sequence[Kind]) -> list[Queue]:
    """Cohorts of queues of 20 cores each, which borrow up to 100 more from their cohort."""
    found = []
    for cohort in range(cohorts):
        found.append(Queue(f"cohort-{cohort}", nominal=20 * queues))
        for queue in range(queues):
            name = f"cq-{cohort}-{queue}"
            found.append(Queue(name, f"cohort-{cohort}", nominal=20, borrowing=100, kinds=tuple(kinds)))
    return found


def racks(
    count: int, nodes: int, asks: dict[str, str], racks_in_block: int = 0, blocks_in_zone: int = 0
) -> list[bytes]:
    """Ready nodes in racks; the racks in blocks and the blocks in zones, where that is said."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    size = {"memory": "1024Gi", "pods": "250", **asks}
    found = []
    for rack in range(count):
        block = rack // racks_in_block if racks_in_block else 0
        labels = {RACK: f"rack-{rack}", BLOCK: f"block-{block}"}
        labels |= {ZONE: f"zone-{block // blocks_in_zone}"} if blocks_in_zone else {}
        for number in range(nodes):
            name = f"node-{rack:04}-{number:03}"
            own = {**labels, "kubernetes.io/hostname": name}
            status = {"capacity": size, "allocatable": size, "conditions": [ready]}
            found.append(encoded("v1", "Node", name, labels=own, status=status))
    return found


def topology() -> bytes:
    levels = [
        {"level": level, "nodeLabel": label}
        for level, label in (("leaf", RACK), ("spine", BLOCK), ("superspine", ZONE))
    ]
    return encoded(f"{OWN}/v1alpha1", "Topology", "racks", spec={"levels": levels})


def prepare(plane: Plane, nodes: list[bytes], queues: Sequence[Queue]) -> None:
    """Nodes, the fabric, priorities and queues; then Kant starts and has bound a first pod.

    Its profile is `kant` but for the five minutes in which nobody evicts a job that has just started: neither Kueue nor
    KAI has them.
    """
    asyncio.run(_create(plane, nodes, queues))
    profile = plane.folder / "published.toml"
    profile.write_text(PROFILE, encoding="utf-8")
    kant(plane, profile=str(profile))
    asyncio.run(probe(plane, KANT))


async def _create(plane: Plane, nodes: list[bytes], queues: Sequence[Queue]) -> None:
    await install(plane)
    values = sorted({kind.priority for queue in queues for kind in queue.kinds})
    classes = [encoded("scheduling.k8s.io/v1", "PriorityClass", f"priority-{one}", value=one) for one in values]
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes)
        await api.post_all(f"/apis/{OWN}/v1alpha1/topologies", [topology()])
        await api.post_all(CLASSES, classes)
        await api.post_all(QUEUES, [queue.body() for queue in queues] + [Queue("default", nominal=10).body()])


def admissions(
    name: str, nodes: list[bytes], queues: list[Queue], wall: float, waits: dict[str, float], part: int
) -> Iterator[Figure]:
    """A `part` of the workloads of these queues, from the first one created to the last one ended; of all of them
    beside the published times."""

    async def play() -> tuple[float, dict[str, list[float]], int]:
        async with Api(plane.config, connections=32) as api:
            rig, opened = Rig(api), asyncio.Event()
            following = asyncio.create_task(rig.follow(opened))
            await opened.wait()
            coming = [
                (number * kind.every, Workload(f"{queue.name}-{kind.name}-{number}", queue.name, kind))
                for queue in queues for kind in queue.kinds for number in range(max(kind.count // part, 1))
            ]  # fmt: skip
            began = await rig.play(coming)
            ended = await rig.until(lambda: all(one.over for one in rig.workloads.values()))
            following.cancel()
            rig.close()
            taken: dict[str, list[float]] = {}
            for one in rig.workloads.values():
                taken.setdefault(one.kind.name.partition("-")[0], []).append(one.admitted - one.created)
            return ended - began, taken, sum(one.evicted for one in rig.workloads.values())

    with Plane() as plane:
        prepare(plane, nodes, queues)
        seconds, taken, evicted = asyncio.run(play())
        spent = plane.cpu()
    count = sum(len(each) for each in taken.values())
    note = f"{count / seconds:.0f} workloads/s; {evicted} pods evicted; CPU-s: " + ", ".join(
        f"{who} {value:.0f}" for who, value in spent.items()
    )
    yield figure(name, seconds, part, f"{count} workloads; {note}", wall, f"Kueue, published: {wall:.0f} s")
    for kind, each in taken.items() if part == 1 else ():
        mean, published = sum(each) / len(each), waits.get(kind, 0.0)
        ratio = published / mean if published else None
        yield Figure(f"published-{name}-{kind}", mean, "s", ratio, f"Kueue: {published:g} s", "mean time to admission")


def figure(name: str, seconds: float, part: int, note: str, published: float, who: str) -> Figure:
    """Seconds beside the published ones; of a part beside nothing."""
    if part > 1:
        return Figure("published-part", seconds, "s", None, "", f"one part in {part} of {name}: {note}")
    return Figure(f"published-{name}", seconds, "s", published / seconds, who, note)


def kueue_baseline(part: int) -> Iterator[Figure]:
    """15,000 workloads in 30 queues."""
    nodes = racks(10, 10, {"cpu": "96"})
    yield from admissions(
        "kueue-baseline", nodes, kueue(5, 6, BASELINE), 351, {"large": 6.7, "medium": 76.8, "small": 215.5}, part
    )


def kueue_large(part: int) -> Iterator[Figure]:
    """50,000 workloads in 1,000 queues."""
    nodes = racks(10, 40, {"cpu": "96"})
    waits = {"large": 106.0, "medium": 256.0, "small": 700.0}
    yield from admissions("kueue-large", nodes, kueue(10, 100, LARGE_SCALE), 1179, waits, part)


def kueue_tas(part: int) -> Iterator[Figure]:
    """15,000 gangs of 2, 4 and 8 pods in 30 queues, on 640 nodes in 10 racks."""
    nodes = racks(10, 64, {"cpu": "96"})
    waits = {"large": 39.0, "medium": 106.5, "small": 242.5}
    yield from admissions("kueue-tas", nodes, kueue(5, 6, tuple(_by_rack())), 401, waits, part)


# --- KAI ----------------------------------------------------------------------------------------------------------

GPU = "nvidia.com/gpu"


def kai(
    name: str, published: float, queues: list[Queue], first: Sequence[tuple[str, Kind]], then: tuple[str, Kind],
    nodes: list[bytes], part: int, refused: bool = False,
) -> Iterator[Figure]:  # fmt: skip
    """Seconds from the first pod of `then` created until all of it is bound, after all of `first` was.

    With `refused` until each of its pods says why it waits.
    """

    async def play() -> tuple[float, int]:
        async with Api(plane.config, connections=32) as api:
            rig, opened = Rig(api), asyncio.Event()
            following = asyncio.create_task(rig.follow(opened))
            await opened.wait()
            before = [(0.0, one) for queue, kind in first for one in _all(queue, kind)]
            await rig.play(before)
            await rig.until(lambda: all(one.admitted >= 0 for _, one in before))
            asked = _all(*then)
            told = asyncio.create_task(_told(api, then[1].pods)) if refused else None
            await asyncio.sleep(1)
            began = await rig.play([(0.0, one) for one in asked])
            if told is not None:
                ended = await asyncio.wait_for(told, STALL)
            else:
                ended = await rig.until(lambda: all(one.admitted >= 0 for one in asked))
            following.cancel()
            rig.close()
            return ended - began, sum(one.evicted for _, one in before)

    with Plane() as plane:
        prepare(plane, nodes, queues)
        seconds, evicted = asyncio.run(play())
        spent = plane.cpu()["kant"]
    note = f"{evicted} pods evicted; {spent:.1f} CPU-s of its own"
    yield figure(name, seconds, part, note, published, f"KAI, published: {published:g} s")


def _all(queue: str, kind: Kind) -> list[Workload]:
    return [Workload(f"{queue}-{kind.name}-{number}", queue, kind) for number in range(kind.count)]


async def _told(api: Api, pods: int) -> float:
    """When the last of so many pods was first told why it waits."""
    told: set[str] = set()
    async for now, change in changes(api, "spec.nodeName="):
        status = change.object.status
        if not isinstance(status, str) and any(
            one.type == "PodScheduled" and one.status == "False" for one in status.conditions
        ):
            told.add(change.object.metadata.name)
            if len(told) >= pods:
                return now
    raise AssertionError("the watch goes on for ever")


def _kai_nodes(part: int) -> list[bytes]:
    return racks(50 // part, 10, {"cpu": "128", GPU: "8"})


def _singles(part: int) -> Kind:
    return Kind("one", 50 // part * 80, 0, FOREVER, 50, {GPU: "1"})


def kai_fill(part: int) -> Iterator[Figure]:
    """4,000 jobs of one GPU, on 500 nodes of 8, which they fill."""
    one = _singles(part)
    queues = [Queue("fill", resource="gpu", nominal=one.count, kinds=(one,))]
    yield from kai("kai-fill", 398, queues, (), ("fill", one), _kai_nodes(part), part)


def kai_gang(part: int) -> Iterator[Figure]:
    """One job of 512 whole nodes, on 512 nodes in 4 zones of 8 blocks of 8 racks, which prefers a rack."""
    notes = {"kai.scheduler/topology-preferred-placement": RACK}
    pods = 256 // part * 2
    gang = Kind("gang", 1, 0, FOREVER, 50, {GPU: "8"}, pods, notes)
    nodes = racks(256 // part, 2, {"cpu": "128", GPU: "8"}, racks_in_block=8, blocks_in_zone=8)
    queues = [Queue("gang", resource="gpu", nominal=8 * pods, kinds=(gang,))]
    yield from kai("kai-gang", 48.7, queues, (), ("gang", gang), nodes, part)


def kai_impossible(part: int) -> Iterator[Figure]:
    """A gang of 10 nodes may take back 79 GPUs of 4,000 single ones, and needs 80: seconds until it is told so."""
    one, gang = _singles(part), Kind("gang", 1, 0, FOREVER, 50, {GPU: "8"}, 10)
    queues = [
        Queue("lent", "all", "gpu", one.count - 79, kinds=(one,)), Queue("owner", "all", "gpu", 79, kinds=(gang,)),
        Queue("all", resource="gpu", nominal=one.count),
    ]  # fmt: skip
    nodes = _kai_nodes(part)
    yield from kai("kai-impossible", 249.5, queues, [("lent", one)], ("owner", gang), nodes, part, refused=True)


def kai_reclaim(part: int) -> Iterator[Figure]:
    """One gang of 500 whole nodes takes back 4,000 GPUs from as many single jobs, which come again and wait."""
    one = _singles(part)
    gang = Kind("gang", 1, 0, FOREVER, 50, {GPU: "8"}, one.count // 8)
    queues = [
        Queue("all", resource="gpu", nominal=one.count), Queue("lent", "all", "gpu", 0, kinds=(one,)),
        Queue("owner", "all", "gpu", one.count, kinds=(gang,)),
    ]  # fmt: skip
    yield from kai("kai-reclaim", 85, queues, [("lent", one)], ("owner", gang), _kai_nodes(part), part)


CASES = {
    each.__name__.replace("_", "-"): each
    for each in (kueue_baseline, kueue_large, kueue_tas, kai_fill, kai_gang, kai_impossible, kai_reclaim)
}


def measure(cases: Sequence[str] = tuple(CASES), part: int = 1) -> Iterator[Figure]:
    for case in cases:
        yield from CASES[case](part)


def main() -> int:
    from benchmarks.__main__ import show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes_published")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them where none is named")
    parser.add_argument("--part", type=int, default=1, choices=range(1, 51), metavar="N", help="an N-th of each load")
    asked = parser.parse_args()
    return 1 if show(measure(asked.cases or tuple(CASES), asked.part)) else 0


if __name__ == "__main__":
    sys.exit(main())
