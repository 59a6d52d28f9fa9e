"""Nodes that come, go and change while pods are bound: what that costs Kant, beside kube-scheduler in the same cluster.

`python -m benchmarks.kubernetes_churn [CASE …] [--nodes N] [--pods N] [--seconds S] [--every S]`; the cases are the
keys of `CASES`. Both schedulers run on one control plane, and each has a pod of its own every second: first while the
nodes stand still, then with an event of the nodes every second. So a busy machine is busy for both, and in both halves.

On the nodes there are pods, most with one GPU, and of each scheduler some more wait for a whole node of a label that
nodes gain and lose. A node that leaves is deleted together with its pods, as the garbage collector would.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from benchmarks.kubernetes_cases import probe
from benchmarks.kubernetes_load import NODES, PODS, SLOTS, Watch, nodes, pod
from benchmarks.kubernetes_rig import Api, Plane
from benchmarks.kubernetes_rivals import KANT, SCHEDULER
from benchmarks.measure import Figure

RIVALS = (SCHEDULER, KANT)
WAITING = 10
"""Pods of each scheduler that wait for a whole node of the label."""
LABEL = "example.com/team"
SPOT = 20
"""Nodes that flap."""
SETTLED = 5.0
"""Seconds for which nothing is measured, so that the first decisions and their Events are over."""
PATIENCE = 60.0


@dataclass(frozen=True)
class Size:
    """`every` is the time between two events of nodes, of a half of so many `seconds`."""

    nodes: int = 1_000
    pods: int = 10_000
    seconds: int = 40
    every: float = 1.0


@dataclass(frozen=True)
class Half:
    """Of one rival: seconds from each pod's creation to the sight of its binding, and its own CPU time."""

    waits: list[float]
    cpu: float
    events: int


@dataclass
class Fleet:
    """What has become of the nodes, and what happens to them next."""

    api: Api
    size: Size
    on: dict[str, list[str]]
    turn: int = 0
    away: list[str] = field(default_factory=list)
    fresh: int = 0

    def name(self, offset: int = 0) -> str:
        """Another one of the nodes that have been there from the beginning, and are yet."""
        names = list(self.on)
        return names[(self.turn * 37 + offset) % len(names)]

    async def taint(self) -> None:
        await self._patch(self.name(), {"spec": {"taints": [{"key": "busy", "value": "yes", "effect": "NoSchedule"}]}})

    async def label(self) -> None:
        team = "blue" if self.turn % 8 < 4 else None
        await self._patch(self.name(1), {"metadata": {"labels": {LABEL: team}}})

    async def join(self) -> None:
        """A node joins that was never there."""
        await self._create(self.size.nodes + self.fresh)
        self.fresh += 1

    async def leave(self) -> None:
        await self._delete(self.name(2))

    async def flap(self) -> None:
        """One of a few spot nodes goes on: not ready, gone with its pods, there again and not ready, and ready."""
        number, step = self.turn // 4 % SPOT, self.turn % 4
        name = f"node-{number:05}"
        if step == 1:
            await self._delete(name)
        elif step == 2:
            await self._create(number, ready=False)
        else:
            await self._patch(f"{name}/status", {"status": {"conditions": [_condition(step == 3)]}})

    async def _create(self, number: int, ready: bool = True) -> None:
        (body,) = nodes(1, number)
        if not ready:
            made = msgspec.json.decode(body)
            made["status"]["conditions"] = [_condition(False)]
            body = msgspec.json.encode(made)
        await self.api.do_all([("POST", NODES, body)])

    async def _delete(self, name: str) -> None:
        paths = [f"{NODES}/{name}"] + [f"{PODS}/{each}?gracePeriodSeconds=0" for each in self.on.pop(name, ())]
        await asyncio.gather(*(self.api.send("DELETE", path) for path in paths))

    async def _patch(self, name: str, body: object) -> None:
        await self.api.do_all([("PATCH", f"{NODES}/{name}", msgspec.json.encode(body))])


def _condition(ready: bool) -> dict[str, str]:
    return {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Kubelet"}


Events = Sequence[Callable[[Fleet], Any]]
CASES: dict[str, Events] = {"churn": (Fleet.taint, Fleet.label, Fleet.join, Fleet.leave), "flapping": (Fleet.flap,)}


def measure(cases: Sequence[str] = tuple(CASES), size: Size | None = None) -> Iterator[Figure]:
    """Of each rival: the median and the longest time to bind with events beside those without, and CPU a change."""
    for case in cases:
        for rival, (quiet, busy) in run(CASES[case], size or Size()).items():
            name = f"kube-{case}-{rival}"
            for what, of in (("p50", median), ("max", max)):
                still, moving = of(quiet.waits), of(busy.waits)
                note = f"{len(busy.waits)} pods and {busy.events} events, one after the other"
                yield Figure(
                    f"{name}-{what}", moving, "s", still / moving, f"while nodes stand still, {still:.3f} s", note
                )
            cost = 1000 * (busy.cpu - quiet.cpu) / busy.events
            note = f"{quiet.cpu:.2f} CPU-s of its own in the quiet half, {busy.cpu:.2f} in the other"
            yield Figure(f"{name}-cpu", cost, "CPU-ms a change", None, "", note)


def run(events: Events, size: Size) -> dict[str, tuple[Half, Half]]:
    with Plane() as plane:
        on = asyncio.run(_fill(plane, size))
        for rival in RIVALS:
            rival.start(plane)
        for rival in RIVALS:
            asyncio.run(probe(plane, rival))
        asyncio.run(_wait_in_vain(plane))
        quiet = asyncio.run(_half(plane, size, None, on, "quiet"))
        busy = asyncio.run(_half(plane, size, events, on, "busy"))
        return {rival.name: (quiet[rival.name], busy[rival.name]) for rival in RIVALS}


async def _fill(plane: Plane, size: Size) -> dict[str, list[str]]:
    """Nodes with pods of Kant's on them, of which each node's last GPUs are free; returns these by node."""
    names = [f"node-{i:05}" for i in range(size.nodes)]
    on: dict[str, list[str]] = {name: [] for name in names}
    bodies = []
    for i in range(size.pods):
        name, round_ = names[i % size.nodes], i // size.nodes
        on[name].append(f"held-{i:06}")
        bodies.append(pod(f"held-{i:06}", KANT.scheduler, gpus=int(round_ < SLOTS - 3), node=name))
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes(size.nodes))
        await api.post_all(PODS, bodies)
    return on


async def _wait_in_vain(plane: Plane) -> None:
    """Pods that wait for a whole node of a label, which some nodes have."""
    async with Api(plane.config) as api:
        patch = msgspec.json.encode({"metadata": {"labels": {LABEL: "blue"}}})
        await api.do_all([("PATCH", f"{NODES}/node-{i:05}", patch) for i in range(SPOT)])
        for rival in RIVALS:
            wants = [
                pod(f"waits-{rival.name}-{i}", rival.scheduler, SLOTS, labels={LABEL: "blue"}) for i in range(WAITING)
            ]
            await api.post_all(PODS, wants)
    await asyncio.sleep(SETTLED)


async def _half(
    plane: Plane, size: Size, events: Events | None, on: dict[str, list[str]], name: str
) -> dict[str, Half]:
    async with Api(plane.config) as api:
        watch, fleet = Watch(api), Fleet(api, size, on)
        await watch.start()
        before, made = plane.cpu(), dict[str, float]()
        happening = asyncio.create_task(_happen(fleet, events, size)) if events else None
        begin = time.monotonic()
        for second in range(size.seconds):
            for place, rival in enumerate(RIVALS):
                due = begin + second + 0.5 * place + 0.37 * second % 0.5  # before, after and amid events
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                each = f"{name}-{rival.name}-{second}"
                made[each] = time.monotonic()
                await api.post_all(PODS, [pod(each, rival.scheduler)])
        if happening is not None:
            await happening
        if not await watch.until(lambda: made.keys() <= watch.bound.keys(), PATIENCE):
            missing = sorted(made.keys() - watch.bound.keys())
            raise RuntimeError(f"{len(missing)} pods were not bound, such as {missing[0]}: {plane.log(KANT.name)}")
        await asyncio.sleep(max(0.0, begin + size.seconds + 1 - time.monotonic()))
        after = plane.cpu()
        await watch.stop()
    waits = {each: watch.bound[each][0] - created for each, created in made.items()}
    return {
        rival.name: Half(
            [wait for each, wait in waits.items() if f"-{rival.name}-" in each],
            after[rival.name] - before[rival.name], fleet.turn,
        )
        for rival in RIVALS
    }  # fmt: skip


async def _happen(fleet: Fleet, events: Events, size: Size) -> None:
    begin, count = time.monotonic(), int(size.seconds / size.every)
    while fleet.turn < count:
        await asyncio.sleep(max(0.0, begin + fleet.turn * size.every - time.monotonic()))
        await events[fleet.turn % len(events)](fleet)
        fleet.turn += 1


def main() -> int:
    from benchmarks.__main__ import show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes_churn")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them where none is named")
    for name, default in (("nodes", Size.nodes), ("pods", Size.pods), ("seconds", Size.seconds), ("every", Size.every)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    size = Size(asked.nodes, asked.pods, asked.seconds, asked.every)
    return 1 if show(measure(asked.cases or tuple(CASES), size)) else 0


if __name__ == "__main__":
    sys.exit(main())
