"""An auditor beside the scheduler: sees every version of every pod and node, and judges what was bound.

It follows the API server by watches of its own, and replays what it saw in the order of resource versions. So the
order in which two watches deliver does not matter, and nothing between two looks is missed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal
from functools import cache
from typing import Any

from tests.kube.api import Api, collection
from tests.kube.kubelet import first_of
from tests.kube.objects import GANG, GANG_MIN, GPU, Object
from tests.patience import PATIENCE_S

COUNTED = (GPU, "cpu", "memory", "pods")
Room = tuple[int, ...]
"""One number for each of COUNTED, in thousandths."""
SUFFIX = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
LAG_S = 10.0
"""Room that a node had this long before a bind counts still, be it that the node has changed or that another scheduler
has bound something there since: nobody can know of a change before it arrives."""


@dataclass(frozen=True)
class Seen:
    """One version of a pod or a node, and when it came in."""

    version: int
    at: float
    name: str
    gone: bool
    node: str = ""
    uid: str = ""
    room: Room = ()
    phase: str = ""
    deleting: bool = False
    gang: str = ""
    least: int = 0
    explained: bool = False
    scheduler: str = ""

    @property
    def uses(self) -> bool:
        """Whether the pod takes room on its node."""
        return bool(self.node) and not self.gone and self.phase not in ("Succeeded", "Failed")

    @property
    def up(self) -> bool:
        """Whether the pod counts for its gang: bound, and nobody has asked it to go."""
        return self.uses and not self.deleting


@dataclass
class Report:
    """What an auditor found. Times in seconds."""

    pods: int = 0
    bound: int = 0
    violations: list[str] = field(default_factory=list)
    beside: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each pod that took too much: the pods that its node had, and how many seconds earlier they were bound."""
    partial_s: dict[str, float] = field(default_factory=dict)
    """The longest time for which each gang had some of its pods bound, but fewer than it needs."""
    half: list[str] = field(default_factory=list)
    """Gangs of which that is so in the end."""
    waiting: list[str] = field(default_factory=list)
    """Pods that are there and not bound."""
    lost: list[str] = field(default_factory=list)
    """Those of them without a reason: neither PodScheduled=False nor a scheduling gate."""

    def assert_kept(self, *, all_bound: bool = False) -> None:
        """Raises AssertionError where a promise was broken. How long a gang is whole later depends on the machine."""
        assert not self.violations, "\n".join([*self.violations[:20], *map(str, self.beside.items())])
        assert not self.half, f"gangs of which a part is bound: {self.half}"
        assert not self.lost, f"pods without a node and without a reason: {self.lost[:20]}"
        assert not (all_bound and self.waiting), f"pods that wait: {self.waiting[:20]}"


class Auditor:
    """`async with Auditor(api) as auditor: …; report = await auditor.report()`."""

    def __init__(self, api: Api, *, scheduler: str = "kant") -> None:
        self.api, self.scheduler = api, scheduler
        self.gaps = 0
        """How often changes may have been missed, because the server could not resume a watch."""
        self._pods: list[Seen] = []
        self._nodes: list[Seen] = []
        self._last: dict[str, dict[str, Seen]] = {"pods": {}, "nodes": {}}
        self._gone: dict[str, set[str]] = {what: set() for what in self._last}

    async def __aenter__(self) -> Auditor:
        self._listed = {what: asyncio.Event() for what in self._last}
        self._tasks = [asyncio.create_task(self._follow(what)) for what in self._last]
        for event in self._listed.values():
            await first_of(event, *self._tasks)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def report(self) -> Report:
        """Wait until the watches have seen all that is on the server now, and judge."""
        async with asyncio.timeout(PATIENCE_S):
            for what in self._last:
                while not await self._up_to_date(what):
                    await asyncio.sleep(0.05)
        return judge(self._pods, self._nodes, time.monotonic())

    async def _up_to_date(self, what: str) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        answer = await self.api.get(collection(what))
        at = _version(answer)
        there = {thing["metadata"]["uid"]: _version(thing) for thing in answer["items"]}
        known = {uid: seen.version for uid, seen in self._last[what].items()}
        gone = self._gone[what]
        came = all(known.get(uid, -1) >= version or uid in gone for uid, version in there.items())
        return came and all(uid in there or version > at for uid, version in known.items())

    async def _follow(self, what: str) -> None:
        async for kind, thing in self.api.follow(what):
            if kind != "LISTED":
                self._see(what, thing, kind == "DELETED")
                continue
            items = thing["items"]
            self.gaps += self._listed[what].is_set()
            there = {item["metadata"]["uid"] for item in items}
            for uid in self._last[what].keys() - there:  # deleted in a gap, at the earliest at once: no false alarm
                self._keep(what, replace(self._last[what][uid], at=time.monotonic(), gone=True))
            for item in items:
                self._see(what, item, False)
            if what == "nodes" and not self._listed[what].is_set():  # for what was bound before
                self._nodes = [replace(node, version=0) for node in self._nodes]
            self._listed[what].set()

    def _see(self, what: str, thing: Object, gone: bool) -> None:
        now = time.monotonic()
        self._keep(what, seen_pod(thing, now, gone) if what == "pods" else seen_node(thing, now, gone))

    def _keep(self, what: str, seen: Seen) -> None:
        (self._pods if what == "pods" else self._nodes).append(seen)
        if seen.gone:
            self._last[what].pop(seen.uid, None)
            self._gone[what].add(seen.uid)
        else:
            self._last[what][seen.uid] = seen


# --- what is seen ------------------------------------------------------------------------------------------------


def seen_pod(pod: Object, at: float, gone: bool = False) -> Seen:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    labels = meta.get("labels") or {}
    gang = f"{meta['namespace']}/{labels[GANG]}" if GANG in labels else ""
    refused = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in status.get("conditions") or ())
    return Seen(
        version=_version(pod),
        at=at,
        name=f"{meta['namespace']}/{meta['name']}",
        gone=gone,
        uid=meta["uid"],
        node=spec.get("nodeName", ""),
        room=_demand(spec),
        phase=status.get("phase", ""),
        deleting=bool(meta.get("deletionTimestamp")),
        gang=gang,
        least=int(labels.get(GANG_MIN, 0)),
        explained=refused or bool(spec.get("schedulingGates")),
        scheduler=spec.get("schedulerName", ""),
    )


def seen_node(node: Object, at: float, gone: bool = False) -> Seen:
    room = node["status"].get("allocatable", {})
    amounts = tuple(thousandths(room.get(name, "0")) for name in COUNTED)
    meta = node["metadata"]
    return Seen(version=_version(node), at=at, name=meta["name"], gone=gone, uid=meta["uid"], room=amounts)


@cache
def thousandths(quantity: str | int) -> int:
    """A quantity of Kubernetes, rounded up to whole thousandths: "1500m", "2Gi", "1e3"."""
    text = str(quantity)
    if text[-2:] in BINARY:
        exact = Decimal(text[:-2]) * 1000 * 2 ** BINARY[text[-2:]]
    else:
        suffix = text[-1] if text[-1].isalpha() else ""
        exact = Decimal(text.removesuffix(suffix)).scaleb(3 + SUFFIX[suffix])
    return int(exact.to_integral_value(ROUND_CEILING))


def _demand(spec: Object) -> Room:
    def of(container: Object, name: str) -> int:
        return thousandths((container.get("resources", {}).get("requests") or {}).get(name, "0"))

    def total(name: str) -> int:
        if name == "pods":
            return 1000
        together = sum(of(container, name) for container in spec["containers"])
        before = max((of(container, name) for container in spec.get("initContainers") or ()), default=0)
        return max(together, before) + thousandths((spec.get("overhead") or {}).get(name, "0"))

    return tuple(total(name) for name in COUNTED)


def _version(thing: Object) -> int:
    return int(thing["metadata"]["resourceVersion"])


# --- what is judged ----------------------------------------------------------------------------------------------


def judge(pods: list[Seen], nodes: list[Seen], now: float) -> Report:
    """Replay all versions in their order."""
    report = Report()
    history: dict[str, list[Seen]] = defaultdict(list)
    for node in sorted(nodes, key=lambda seen: seen.version):
        history[node.name].append(node)
    last: dict[str, Seen] = {}
    used: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTED))
    arrived: dict[str, list[Seen]] = defaultdict(list)
    gangs: dict[str, _Gang] = defaultdict(_Gang)
    for pod in sorted(pods, key=lambda seen: (seen.version, seen.gone)):
        before = last.get(pod.uid)
        last[pod.uid] = pod
        if before and before.node and pod.node != before.node:
            report.violations.append(f"{pod.name} was on {before.node}, and then on {pod.node or 'none'}")
        for old_or_new, sign in ((before, -1), (pod, 1)):
            if old_or_new and old_or_new.uses:
                used[old_or_new.node] = [a + sign * b for a, b in zip(used[old_or_new.node], pod.room, strict=True)]
        if pod.node and not (before and before.node):
            report.bound += 1
            arrived[pod.node].append(pod)
            if pod.uses:
                fresh = [o for o in arrived[pod.node] if o.scheduler != pod.scheduler and o.at > pod.at - LAG_S]
                late = [one for one in fresh if last[one.uid].uses]
                known = [u - sum(one.room[at] for one in late) for at, u in enumerate(used[pod.node])]
                too_much = _too_much(pod, known, history[pod.node])
                report.violations.extend(too_much)
                if too_much:
                    others = [one for one in arrived[pod.node] if one is not pod and last[one.uid].uses]
                    report.beside[pod.name] = {one.name: pod.at - one.at for one in others}
        if pod.gang:
            gangs[pod.gang].see(before, pod)
    report.pods = len(last)
    report.partial_s = {name: gang.longest(now) for name, gang in sorted(gangs.items())}
    report.half = sorted(name for name, gang in gangs.items() if gang.since is not None)
    unbound = [pod for pod in last.values() if not pod.gone and not pod.node and pod.phase == "Pending"]
    report.waiting = sorted(pod.name for pod in unbound)
    report.lost = sorted(pod.name for pod in unbound if not pod.explained)
    return report


def _too_much(pod: Seen, used: list[int], history: list[Seen]) -> list[str]:
    """Sentences where a bind took more than the node had then, or had just before."""
    known = [node for node in history if node.version <= pod.version]
    recent = [node for node, until in zip(known, [*known[1:], None], strict=True) if _counts(until, pod)]
    rooms = [node.room for node in recent if not node.gone] or [(0,) * len(COUNTED)]
    most = [max(amounts) for amounts in zip(*rooms, strict=True)]
    return [
        f"{pod.name} was bound to {pod.node}, which has {has / 1000:g} {name} and then had {needs / 1000:g} taken"
        for name, needs, has in zip(COUNTED, used, most, strict=True)
        if needs > has
    ]


def _counts(until: Seen | None, pod: Seen) -> bool:
    """Whether a version of a node that ended with `until` counts for a bind."""
    return until is None or until.at > pod.at - LAG_S


class _Gang:
    """How many of a gang's pods are up, and since when that is too few."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.since: float | None = None
        self.record = 0.0

    def see(self, before: Seen | None, pod: Seen) -> None:
        for seen, sign in ((before, -1), (pod, 1)):
            if seen:
                self.counts["up"] += sign * seen.up
                self.counts["done"] += sign * (seen.phase == "Succeeded")
        partial = self.counts["up"] > 0 and self.counts["up"] + self.counts["done"] < pod.least
        if self.since is not None:
            self.record = max(self.record, pod.at - self.since)
        if not partial:
            self.since = None
        elif self.since is None:
            self.since = pod.at

    def longest(self, now: float) -> float:
        return max(self.record, now - self.since) if self.since is not None else self.record


def summary(report: Report) -> dict[str, Any]:
    """Figures for a line of a log."""
    longest = max(report.partial_s.values(), default=0.0)
    return {"pods": report.pods, "bound": report.bound, "waiting": len(report.waiting), "longest_partial_s": longest}
