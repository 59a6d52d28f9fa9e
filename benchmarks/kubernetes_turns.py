"""What changes of nodes and pods cost a leader that has no API server: `python -m benchmarks.kubernetes_turns`.

The lines of the watches of `kubernetes_churn` are fed to the driver, which takes a turn after each burst of them. What
it asks of the API server is granted at once. So CPU time has nothing of the connections in it, and the Python calls of
a change are exact: tests/kube/test_turns.py holds them below what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from benchmarks.calls import COMPREHENSIONS, HOME
from benchmarks.kubernetes_churn import LABEL, SPOT, WAITING
from benchmarks.kubernetes_load import SLOTS, nodes, pod
from kant.kube.connect.config import Config
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.live.warm import warm
from kant.scheduler.profile import builtin_profile

CREATED = "2026-01-01T00:00:00Z"
KINDS = ("pod", "taint", "label", "join", "leave", "report")
"""What happens: a pod comes and is bound, and what happens to nodes; `report` is one of a kubelet that says nothing."""


class Granting:
    """An API server that grants whatever is asked of it, and says nothing by itself."""

    config, concurrency = Config("http://nowhere"), 1

    async def bind(self, namespace: str, name: str, uid: str, node: str, *_: object, **__: object) -> None:
        self.bound.append((uid, node))

    def __init__(self) -> None:
        self.bound: list[tuple[str, str]] = []


@dataclass
class Cost:
    """What changes of one kind have cost."""

    changes: int = 0
    cpu: float = 0.0
    turns: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def calls_each(self) -> int:
        """Python calls of one change, rounded up."""
        return -(-self.calls.total() // max(self.changes, 1))


class Rig:
    """A leader of so many nodes and pods."""

    def __init__(self, many: int, held: int, counting: bool = True) -> None:
        self.client = Granting()
        client: Any = self.client
        profile = builtin_profile("kant")
        warm(profile)
        self.driver = KubeDriver(client, DriverSettings(profile), EventRecorder(client, "turns"))
        self.version, self.many, self.fresh, self.turn = 1, many, 0, 0
        self.counting = counting
        self.costs = {kind: Cost() for kind in KINDS}
        self.views: dict[str, dict[str, Any]] = {}
        self.on: dict[str, list[str]] = {}
        informers = self.driver.informers
        informers.nodes.on_replace(
            [self._view(f"node-{i:05}", body, informers.nodes) for i, body in enumerate(nodes(many))]
        )
        pods = []
        for i in range(held):
            node = f"node-{i % many:05}"
            self.on.setdefault(node, []).append(f"held-{i}")
            pods.append(
                self._view(f"held-{i}", pod(f"held-{i}", "kant", int(i // many < SLOTS - 3), node), informers.pods)
            )
        for i in range(WAITING):
            body = pod(f"waits-{i}", "kant", SLOTS, labels={LABEL: "blue"})
            pods.append(self._view(f"waits-{i}", body, informers.pods))
        informers.pods.on_replace(pods)
        assert self.driver.build()

    def _made(self, name: str, body: bytes) -> dict[str, Any]:
        """An object as the API server tells it."""
        self.version += 1
        made: dict[str, Any] = msgspec.json.decode(body)
        kept = {"uid": name, "resourceVersion": str(self.version), "creationTimestamp": CREATED}
        made["metadata"] |= kept | ({"namespace": "default"} if made["kind"] == "Pod" else {})
        self.views[name] = made
        return made

    def _view(self, name: str, body: bytes, reflector: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(self._made(name, body)), type=reflector.view)

    def line(self, kind: str, name: str, **changes: Any) -> tuple[str, bytes]:
        """A line of a watch, and whose: an object changes, in place."""
        made = self.views[name]
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        for key, value in changes.items():
            made[key] = {**made.get(key, {}), **value}
        return made["kind"], msgspec.json.encode({"type": kind, "object": made})

    async def feed(self, cost: Cost, lines: list[tuple[str, bytes]]) -> None:
        """These lines come, and the driver takes one turn."""
        informers = self.driver.informers
        with self._measured(cost):
            for kind, line in lines:
                reflector: Any = informers.pods if kind == "Pod" else informers.nodes
                reflector._take(line)
                while reflector._changes:
                    reflector.sink(*reflector._changes.popleft())
            if self.driver._awake.is_set():
                self.driver._awake.clear()
                cost.turns += 1
                self.driver.turn()
            for _ in range(4):
                await asyncio.sleep(0)

    @contextmanager
    def _measured(self, cost: Cost) -> Iterator[None]:
        calls = cost.calls

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

        gc.disable()
        began = time.process_time()
        if self.counting:
            sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            cost.cpu += time.process_time() - began
            gc.enable()

    # --- what happens -------------------------------------------------------------------------

    async def happen(self, kind: str) -> None:
        cost = self.costs[kind]
        cost.changes += 1
        self.turn += 1
        await getattr(self, f"_{kind}")(cost)

    async def _pod(self, cost: Cost) -> None:
        name = f"comes-{self.turn}"
        self._made(name, pod(name, "kant"))
        await self.feed(cost, [self.line("ADDED", name)])
        await self.feed(cost, [])
        told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": CREATED}
        ((uid, node),) = self.client.bound
        self.client.bound.clear()
        assert uid == name
        self.on.setdefault(node, []).append(name)
        await self.feed(cost, [self.line("MODIFIED", name, spec={"nodeName": node}, status={"conditions": [told]})])

    def _some(self) -> str:
        names = list(self.on)
        return names[self.turn * 37 % len(names)]

    async def _taint(self, cost: Cost) -> None:
        taints = [{"key": "busy", "value": "yes", "effect": "NoSchedule"}]
        await self.feed(cost, [self.line("MODIFIED", self._some(), spec={"taints": taints})])

    async def _label(self, cost: Cost) -> None:
        name = self._some()
        labels = {key: value for key, value in self.views[name]["metadata"]["labels"].items() if key != LABEL}
        if self.turn % 8 < 4:
            labels[LABEL] = "blue"
        await self.feed(cost, [self.line("MODIFIED", name, metadata={"labels": labels})])

    async def _join(self, cost: Cost) -> None:
        (body,) = nodes(1, self.many + self.fresh)
        name = f"node-{self.many + self.fresh:05}"
        self.fresh += 1
        self._made(name, body)
        await self.feed(cost, [self.line("ADDED", name)])

    async def _leave(self, cost: Cost) -> None:
        name = self._some()
        gone = self.on.pop(name)
        await self.feed(cost, [self.line("DELETED", name), *(self.line("DELETED", one) for one in gone)])

    async def _report(self, cost: Cost) -> None:
        beat = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": str(self.turn)}
        await self.feed(cost, [self.line("MODIFIED", self._some(), status={"conditions": [beat]})])


def measure(many: int, held: int, rounds: int, counting: bool, profiler: Any = None) -> dict[str, Cost]:
    """What each kind of change costs, of so many rounds of all kinds after a first that loads what is needed."""

    async def play() -> dict[str, Cost]:
        rig = Rig(many, held, counting)
        async with asyncio.TaskGroup() as tasks:
            binding = tasks.create_task(rig.driver.binder.run())
            for round_ in range(rounds + 2):
                if round_ == 2:
                    rig.costs = {kind: Cost() for kind in KINDS}
                    if profiler is not None:
                        profiler.enable()
                for kind in KINDS:
                    await rig.happen(kind)
            if profiler is not None:
                profiler.disable()
            binding.cancel()
        rig.driver.core.state.check()
        return rig.costs

    return asyncio.run(play())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes_turns")
    for name, default in (("nodes", 1000), ("pods", 10_000), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--by", default="", help="the functions that changes of this kind call most")
    asked = parser.parse_args()
    timed = measure(asked.nodes, asked.pods, asked.rounds, counting=False)
    counted = measure(asked.nodes, asked.pods, asked.rounds, counting=True)
    for kind in KINDS:
        one, cost = timed[kind], counted[kind]
        print(
            f"{kind:8} {1000 * one.cpu / one.changes:8.2f} CPU-ms {cost.calls_each:8,} calls {one.turns / one.changes:4.1f} turns"
        )
    if asked.by:
        for (file, function), count in counted[asked.by].calls.most_common(40):
            print(f"{count / counted[asked.by].changes:10.1f} {file[-50:]} {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
