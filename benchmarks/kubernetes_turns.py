"""What changes of nodes and pods cost a leader that has no API server: `python -m benchmarks.kubernetes_turns`.

The lines of the watches of `kubernetes_churn` are fed to the driver, which takes a turn after each of them. What it
asks of the API server is granted at once. So CPU time has nothing of the connections in it, and where all clocks stand
still the Python calls of a change are exact: tests/kube/test_turns.py holds them below what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest.mock import patch

import msgspec

from benchmarks.calls import HOME
from benchmarks.kubernetes_churn import LABEL, WAITING
from benchmarks.kubernetes_load import SLOTS, nodes, pod
from benchmarks.measure import Figure
from kant.kube.connect.config import Config
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.live.warm import warm
from kant.scheduler.profile import builtin_profile

CREATED = "2026-01-01T00:00:00Z"
NOW = 1_800_000_000.0
KINDS = ("pod", "taint", "label", "join", "leave", "report")
"""A pod comes and is bound; what happens to nodes (`leave`: with its pods); a kubelet says what it said before."""
CLOCKS = ("time.time", "time.monotonic", "time.perf_counter")


class StandingClock:
    """A clock that says `now` (seconds) until it is set to another time."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@contextmanager
def standing_clock() -> Iterator[StandingClock]:
    """Put this clock in the place of every clock of the leaders that are made here, and of their event loops.

    Else a slow machine does more in a turn: what rests after work for a multiple of the time that it took is due again.
    """
    clock = StandingClock()
    with ExitStack() as stack:
        for name in CLOCKS:
            stack.enter_context(patch(name, clock))
        yield clock


class Granting:
    """An API server that grants each binding, and says nothing by itself. `bound` has the uid and the node of each."""

    config, concurrency = Config("http://nowhere"), 1

    def __init__(self) -> None:
        self.bound: list[tuple[str, str]] = []

    async def bind(self, namespace: str, name: str, uid: str, node: str, *_: object, **__: object) -> None:
        self.bound.append((uid, node))


@dataclass
class Cost:
    """What changes of one kind have cost: CPU-seconds, or calls of functions of Kant, by file and function."""

    changes: int = 0
    cpu: float = 0.0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def calls_each(self) -> int:
        """Calls of one change, rounded up."""
        return -(-self.calls.total() // max(self.changes, 1))


class Rig:
    """A leader of so many nodes with so many pods on them, and what its API server tells it.

    Calls are exact only where it is made and used under `standing_clock`.
    """

    def __init__(self, many: int, held: int, counting: bool) -> None:
        assert not counting or isinstance(time.monotonic, StandingClock), "calls are counted under a standing clock"
        self.client = Granting()
        client: Any = self.client
        self.driver = KubeDriver(
            client, DriverSettings(builtin_profile("kant")), EventRecorder(client, "turns"), lambda: True
        )
        self.counting, self.many, self.version, self.joined = counting, many, 1, 0
        self.collecting = False
        self.costs = {kind: Cost() for kind in KINDS}
        self._objects: dict[str, dict[str, Any]] = {}
        self._on: dict[str, list[str]] = {}
        informers = self.driver.informers
        informers.nodes.on_replace(
            [self._view(f"node-{i:05}", body, informers.nodes) for i, body in enumerate(nodes(many))]
        )
        pods = []
        for i in range(held):
            name, node = f"held-{i}", f"node-{i % many:05}"
            self._on.setdefault(node, []).append(name)
            pods.append(self._view(name, pod(name, "kant", int(i // many < SLOTS - 3), node), informers.pods))
        for i in range(WAITING):
            wants = pod(f"waits-{i}", "kant", SLOTS, labels={LABEL: "blue"})
            pods.append(self._view(f"waits-{i}", wants, informers.pods))
        informers.pods.on_replace(pods)
        self.driver.build()
        core = self.driver.core
        assert core is not None
        if counting:  # these two look at clocks that were bound before; the ledger of waits rests after its work too
            begun = core.clock()
            core.clock = lambda: begun
            core.attribute = lambda: None

    def _made(self, name: str, body: bytes) -> dict[str, Any]:
        """An object as the API server tells it."""
        self.version += 1
        made: dict[str, Any] = msgspec.json.decode(body)
        made["metadata"] |= {"uid": name, "resourceVersion": str(self.version), "creationTimestamp": CREATED}
        if made["kind"] == "Pod":
            made["metadata"]["namespace"] = "default"
        self._objects[name] = made
        return made

    def _view(self, name: str, body: bytes, reflector: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(self._made(name, body)), type=reflector.view)

    async def _told(self, cost: Cost, kind: str, name: str, **changes: Any) -> None:
        """A line of a watch comes, in which an object has these changes, and the driver takes a turn if it is woken."""
        made, driver = self._objects[name], self.driver
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        for key, value in changes.items():
            made[key] = {**made.get(key, {}), **value}
        line = msgspec.json.encode({"type": kind, "object": made})
        reflector: Any = driver.informers.pods if made["kind"] == "Pod" else driver.informers.nodes
        with self._measured(cost):
            reflector._take(line)
            await self._turn()

    async def _turn(self) -> None:
        if self.driver._awake.is_set():
            self.driver._awake.clear()
            self.driver.turn()
        for _ in range(6):
            await asyncio.sleep(0)  # bindings are sent

    @contextmanager
    def _measured(self, cost: Cost) -> Iterator[None]:
        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(home):
                cost.calls[frame.f_code.co_filename[len(home) :], frame.f_code.co_qualname] += 1

        home = f"{HOME}/"
        if not self.collecting:
            gc.disable()
        began = time.process_time()
        if self.counting:
            sys.setprofile(note)
        try:
            yield
        finally:
            if self.counting:
                sys.setprofile(None)
            cost.cpu += time.process_time() - began
            gc.enable()

    # --- what happens ---------------------------------------------------------------------------------------------

    async def happen(self, kind: str, turn: int) -> None:
        """One change of this kind."""
        cost = self.costs[kind]
        cost.changes += 1
        names = list(self._on)
        name = names[turn * 37 % len(names)]
        if kind == "pod":
            await self._pod(cost, f"comes-{turn}")
        elif kind == "taint":
            taints = [{"key": "busy", "value": "yes", "effect": "NoSchedule"}]
            await self._told(cost, "MODIFIED", name, spec={"taints": taints})
        elif kind == "label":
            labels = dict(self._objects[name]["metadata"]["labels"])
            labels[LABEL] = "blue" if labels.get(LABEL) != "blue" else "red"
            await self._told(cost, "MODIFIED", name, metadata={"labels": labels})
        elif kind == "join":
            number = self.many + 16 * self.joined  # each in a leaf of its own
            self.joined += 1
            self._made(f"node-{number:05}", nodes(1, number)[0])
            await self._told(cost, "ADDED", f"node-{number:05}")
        elif kind == "leave":
            for gone in (name, *self._on.pop(name)):
                await self._told(cost, "DELETED", gone)
        else:
            beat = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": str(turn)}
            await self._told(cost, "MODIFIED", name, status={"conditions": [beat]})

    async def _pod(self, cost: Cost, name: str) -> None:
        self._made(name, pod(name, "kant"))
        await self._told(cost, "ADDED", name)
        with self._measured(cost):
            await self._turn()  # the binding has been answered
        ((uid, node),) = self.client.bound
        self.client.bound.clear()
        self._on.setdefault(node, []).append(uid)
        told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": CREATED}
        await self._told(cost, "MODIFIED", name, spec={"nodeName": node}, status={"conditions": [told]})


def run(many: int, held: int, rounds: int, counting: bool, apart: float = 0.0) -> dict[str, Cost]:
    """What each kind of change costs, in so many rounds of all kinds after three that load what is needed.

    Changes that come `apart` (seconds) cost more: what else runs on the machine takes the caches meanwhile. Where calls
    are counted a second passes between two changes, and none within one.
    """

    async def play(clock: StandingClock) -> dict[str, Cost]:
        rig = Rig(many, held, counting)
        carrying_out = asyncio.create_task(rig.driver.effects.run())
        turn = 0
        for round_ in range(rounds + 3):
            if round_ == 3:
                rig.costs = {kind: Cost() for kind in KINDS}
            for kind in KINDS:
                turn += 1
                clock.now += 1.0
                await asyncio.sleep(apart)
                await rig.happen(kind, turn)
        carrying_out.cancel()
        assert rig.driver.core is not None and rig.driver.counts.builds == 1
        rig.driver.core.state.check()
        return rig.costs

    warm(builtin_profile("kant"))
    with standing_clock() if counting else nullcontext(StandingClock()) as clock:
        return asyncio.run(play(clock))


def longest(many: int, held: int, pods: int) -> list[float]:
    """CPU-milliseconds of each of so many pods after 20 others, with the collection of garbage, the longest first."""

    async def play() -> list[float]:
        rig, found = Rig(many, held, counting=False), list[float]()
        rig.collecting = True
        carrying_out = asyncio.create_task(rig.driver.effects.run())
        for turn in range(20 + pods):
            before = rig.costs["pod"].cpu
            await rig.happen("pod", turn)
            found.append(1000 * (rig.costs["pod"].cpu - before))
        carrying_out.cancel()
        return sorted(found[20:], reverse=True)

    warm(builtin_profile("kant"))
    return asyncio.run(play())


def measure(many: int = 1_000, held: int = 10_000, rounds: int = 20, apart: float = 0.0) -> Iterator[Figure]:
    """CPU-milliseconds of each kind of change."""
    counted = run(many, held, 4, counting=True)
    for kind, cost in run(many, held, rounds, counting=False, apart=apart).items():
        note = f"{counted[kind].calls_each:,} calls of functions of Kant"
        yield Figure(f"kube-turn-{kind}", 1000 * cost.cpu / cost.changes, "CPU-ms a change", None, "", note)


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks.__main__ import show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes_turns")
    for name, default in (("nodes", 1_000), ("pods", 10_000), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between two changes; 0: none")
    parser.add_argument("--by", choices=KINDS, help="print the functions that changes of this kind call most")
    parser.add_argument(
        "--longest", type=int, default=0, metavar="PODS", help="print the longest turns of so many pods"
    )
    asked = parser.parse_args(arguments)
    if asked.longest:
        found = longest(asked.nodes, asked.pods, asked.longest)
        print(
            f"mean {sum(found) / len(found):.2f} CPU-ms a pod, longest {', '.join(f'{one:.0f}' for one in found[:5])}"
        )
        return 0
    if asked.by:
        cost = run(asked.nodes, asked.pods, 4, counting=True)[asked.by]
        for (file, function), count in cost.calls.most_common(40):
            print(f"{count / cost.changes:8.1f}  {file} {function}")
        return 0
    return 1 if show(measure(asked.nodes, asked.pods, asked.rounds, asked.apart)) else 0


if __name__ == "__main__":
    sys.exit(main())
