"""What pods are told is told again where it came too late."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube import virtual

from kant.kube.act.effects import Effects
from kant.kube.act.gates import our_gate
from kant.kube.connect.client import ApiError
from kant.kube.follow.mirror import Mirror
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.reports import Reports
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.notifier import Notifier
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.names import GATE
from kant.kube.objects.views import Condition, Gate, Meta, Node, Pod, PodSpec, PodStatus
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Workload
from kant.kube.serve.metrics import KubeTelemetry
from kant.model.decision import NoFit, OverQuota
from kant.testing import make_profile


class Heard:
    """A recorder that only listens."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.on_refused: Any = None
        self.busy = False

    def condition(self, pod: Meta, text: str, reason: str, current: Condition | None) -> bool:
        if current is not None and (current.reason, current.message) == (reason, text):
            return False
        if not self.busy:
            self.said.append((pod.resource_version, reason))
        return not self.busy

    def event(self, *_: object) -> None:
        pass

    def is_pending(self, uid: str) -> bool:
        return False

    def forget(self, uid: str) -> None:
        pass


async def running(notifier: Notifier) -> None:
    """Tell what it says, and open gates, for ever."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(notifier.recorder.run())
        tasks.create_task(notifier.effects.run())


def pod(version: str, condition: Condition | None = None, node: str = "", uid: str = "u") -> Pod:
    meta = Meta(name="a", namespace="ns", uid=uid, resource_version=version)
    return Pod(meta, PodSpec(node_name=node), PodStatus(conditions=(condition,) if condition is not None else ()))


@virtual.timed
async def test_a_condition_that_came_too_late_is_told_of_the_newer_pod() -> None:
    mirror, heard = Mirror(), Heard()
    notifier = Notifier(Effects(None, lambda: None), heard, mirror)  # type: ignore[arg-type]
    mirror.pod("added", pod("1"))
    known = Workload("u")
    notifier.waits(known, ["u"], NoFit(0, 1, 0))
    assert heard.said == [("1", "Unschedulable")] and not known.queued
    heard.on_refused("u", 409)  # refused, and the watch has not said why yet
    assert len(heard.said) == 1
    mirror.pod("modified", pod("2"))
    heard.busy = True
    notifier.again("u")  # the first is still under way
    heard.busy = False
    heard.on_refused("u", 409)  # and is refused now
    assert heard.said[1:] == [("2", "Unschedulable")]
    notifier.again("u")
    mirror.pod("modified", pod("3", Condition("PodScheduled", "False", "Unschedulable", known.reason)))
    notifier.again("u")  # it has arrived
    assert len(heard.said) == 2
    notifier.waits(known, ["u"], OverQuota("q", "", "gpu", 1000, 0, "quota"))
    assert heard.said[2:] == [("3", "Queued")] and known.queued
    mirror.pod("modified", pod("4", node="n"))
    notifier.again("u")
    mirror.pod("modified", pod("5"))
    notifier.again("u")
    assert len(heard.said) == 3


def test_the_fault_of_a_node_is_told_once_for_each_change_of_it() -> None:
    translation, told = Translation(Mirror()), []
    mirror = translation.mirror

    class Noted(Heard):
        def event(self, *words: Any) -> None:
            told.append((words[0].uid, words[3], words[5]))

    def reports(*shadow: str) -> Reports:
        return Reports(DriverSettings(make_profile(), shadow=shadow), translation, Noted(), KubeTelemetry())  # type: ignore[arg-type]

    leading = reports()
    steps = [("1", "odd"), ("1", "odd"), ("1", "odder"), ("1", ""), ("1", "odd"), ("2", "odd"), ("", ""), ("2", "odd")]
    for uid, fault in steps:
        mirror.nodes.replace([Node(Meta(name="n", uid=uid))] if uid else [])
        translation.complaints.clear()
        translation.complaints |= {"node n": fault, "node m": "of somebody else"} if fault else {}
        leading.nodes(["n"])
    translation.complaints["node n"] = "in a shadow"
    reports("default-scheduler").nodes(["n"])
    assert told == [(uid, fault, "Node") for uid, fault in (steps[0], steps[2], steps[4], steps[5], steps[7])]


def test_the_metrics_of_a_leader_count_the_events_that_it_drops() -> None:
    class Nowhere:
        concurrency = 2

    telemetry, server = KubeTelemetry(), Nowhere()
    recorder = EventRecorder(server, "me", bound=2)  # type: ignore[arg-type]
    KubeDriver(server, DriverSettings(make_profile()), recorder, telemetry=telemetry)  # type: ignore[arg-type]
    for number in range(5):
        recorder.event(Meta(name=f"p{number}", uid=str(number)), "Normal", "Why", "so", "Scheduling")
    assert recorder.dropped == 3 and b"kant_events_dropped_total 3.0" in telemetry.text()


class Cluster:
    """An API server with two pods, and a watch that comes late. What it does to each patch is scripted."""

    concurrency = 32

    def __init__(self, faults: list[str], lags: list[float]) -> None:
        self.faults, self.lags = list(faults), list(lags)
        self.pods = {uid: pod("1", uid=uid) for uid in ("u0", "u1")}
        self.on_event: Any = None
        self._seen_at = 0.0

    def store(self, uid: str, said: Condition | None) -> None:
        """A write: the next version, of which the watch tells after a while and in order."""
        version = str(int(self.pods[uid].metadata.resource_version) + 1)
        self.pods[uid] = now = pod(version, said or self.condition(uid), uid=uid)
        loop = asyncio.get_running_loop()
        self._seen_at = max(self._seen_at + 1e-6, loop.time() + (self.lags.pop(0) if self.lags else 0.1))
        loop.call_at(self._seen_at, self.on_event, now)

    def condition(self, uid: str) -> Condition | None:
        return next(iter(self.pods[uid].status.conditions), None)

    async def call(self, method: str, path: str, body: bytes, *, content_type: str) -> bytes:
        fault = self.faults.pop(0) if self.faults and method == "PATCH" else ""
        await asyncio.sleep(2.0 if fault == "slow" else 0.01)
        if fault in ("429", "500", "422"):
            raise ApiError(int(fault), "No", "no")
        if method == "PATCH":
            content = msgspec.json.decode(body)
            meta, (told,) = content["metadata"], content["status"]["conditions"]
            if self.pods[meta["uid"]].metadata.resource_version != meta["resourceVersion"]:
                raise ApiError(409, "Conflict", "it has changed")
            self.store(meta["uid"], Condition("PodScheduled", "False", told["reason"], told["message"]))
        if fault == "answered late":
            await asyncio.sleep(2.0)
        if fault == "lost":
            await asyncio.sleep(10.0)
            raise ApiError(0, "Timeout", "no answer")
        return b""


STEPS = st.tuples(
    st.sampled_from(["say a", "say a", "say b", "say c", "again", "touch", "overwrite"]),
    st.sampled_from(["u0", "u1"]),
    st.sampled_from([0.0, 0.005, 0.015, 0.2, 1.0, 3.0]),
)


@settings(max_examples=examples(60))
@given(
    steps=st.lists(STEPS, min_size=1, max_size=14),
    faults=st.lists(st.sampled_from(["", "", "slow", "answered late", "lost", "429", "500", "422"]), max_size=8),
    lags=st.lists(st.sampled_from([0.0, 0.02, 0.1, 2.5]), max_size=12),
    bound=st.sampled_from([1, 20_000]),
)
@virtual.timed
async def test_a_pod_comes_to_say_the_last_whatever_happens_to_what_was_told(
    steps: list[tuple[str, str, float]], faults: list[str], lags: list[float], bound: int
) -> None:
    """Patches are slow, refused or lost after they were carried out; the watch is late; others write to the pods."""
    cluster, mirror = Cluster(faults, lags), Mirror()
    recorder = EventRecorder(cluster, "me", clock=virtual.now, rng=random.Random(1), bound=bound, workers=2)  # type: ignore[arg-type]
    notifier = Notifier(Effects(cluster, lambda: None), recorder, mirror)  # type: ignore[arg-type]

    def hear(now: Pod) -> None:
        mirror.pod("modified", now)
        notifier.again(now.metadata.uid)

    cluster.on_event = hear
    for one in cluster.pods.values():
        hear(one)
    task, wanted = asyncio.create_task(running(notifier)), dict[str, str]()
    for step, uid, wait in steps:
        if step.startswith("say"):
            wanted[uid] = step
        if step.startswith("say") or (step == "again" and uid in wanted):  # by a state that was built anew
            notifier.says([uid], wanted[uid], "Queued")
        elif step == "touch":
            cluster.store(uid, None)
        elif step == "overwrite":
            cluster.store(uid, Condition("PodScheduled", "False", "Other", "by somebody else"))
        await asyncio.sleep(wait)
    await asyncio.sleep(1_200.0)
    told = {uid: said.message if (said := cluster.condition(uid)) else "" for uid in wanted}
    assert told == wanted
    task.cancel()


class Gates:
    """An API server that refuses to open a gate as often as it is told to."""

    def __init__(self, mirror: Mirror, refusals: list[int]) -> None:
        self.mirror, self.refusals, self.tries = mirror, refusals, 0

    async def patch(self, path: str, patch: Any, **_: Any) -> None:
        self.tries += 1
        if self.refusals:
            raise ApiError(self.refusals.pop(0), "No", "no")
        self.mirror.pod("modified", pod("2"))


@pytest.mark.parametrize(("capacity", "tries"), [(True, 5), (False, 1)])
@virtual.timed
async def test_a_gate_that_was_not_opened_is_tried_again_while_its_pod_waits_for_capacity(
    capacity: bool, tries: int
) -> None:
    """No autoscaler sees the pod before."""

    class Silent(Heard):
        async def run(self) -> None:
            pass

    mirror = Mirror()
    gates = Gates(mirror, [429, 0, 422, 403])
    notifier = Notifier(Effects(gates, lambda: None), Silent(), mirror)  # type: ignore[arg-type]
    mirror.pod("added", msgspec.structs.replace(pod("1"), spec=PodSpec(scheduling_gates=(Gate(GATE),))))
    notifier.says(["u"], "no room", "Unschedulable")
    task = asyncio.create_task(running(notifier))
    await asyncio.sleep(1.0)
    if not capacity:
        notifier.says(["u"], "over quota", "Queued")
    await asyncio.sleep(600.0)
    assert gates.tries == tries and (our_gate(mirror.pods["u"]) < 0) == capacity
    task.cancel()
