"""The recorder: the latest is told once, conditions first, nothing in the way, nothing lost to a busy server."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kube import virtual
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_node, make_pod

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import load
from kant.kube.notify.recorder import CONDITION_OVERDUE, FEW, OVERDUE, EventRecorder
from kant.kube.objects.views import Condition, Meta, Pod


class Server:
    """Notes what it is told; each answer takes a second; refuses as `refusals` says, in order."""

    concurrency = 32
    uneven = False  # whether every other answer is slow, so that two may overtake each other

    def __init__(self, refusals: list[int] | None = None) -> None:
        self.refusals, self.told = list(refusals or []), list[tuple[str, str]]()
        self.asked: list[str] = []  # paths
        self.refused: set[str] = set()  # paths of which the last request was refused
        self.tries = self.now = self.most = 0

    async def call(self, method: str, path: str, body: bytes, *, content_type: str) -> bytes:
        self.asked.append(path)
        self.tries += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(3 if self.uneven and self.tries % 2 else 1)
        self.now -= 1
        self.refused.discard(path)
        if self.refusals and (code := self.refusals.pop(0)):
            self.refused.add(path)
            raise ApiError(code, "No", "no", 2.0 if code == 429 else None)
        content = msgspec.json.decode(body)
        if method == "PATCH":
            self.told.append((path.split("/")[-2], content["status"]["conditions"][0]["message"]))
        else:
            self.told.append((content["regarding"]["name"], content["note"]))
        return b""


def pod(name: str, version: str = "1") -> Meta:
    return Meta(name=name, namespace="ns", uid=f"uid-{name}", resource_version=version)


def recorder(server: Server, **options: Any) -> EventRecorder:
    return EventRecorder(server, "me", clock=virtual.now, rng=random.Random(1), **options)  # type: ignore[arg-type]


@example(says=[(0, 1, 1.0), (0, 0, 2.0), (0, 1, 0.0)], refusals=[0, 429, 409, 409])
@given(
    says=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 3)), max_size=30),
    refusals=st.lists(st.sampled_from([0, 0, 429, 500, 0, 409]), max_size=12),
)
@virtual.timed
async def test_the_last_condition_of_each_pod_is_told_and_never_the_same_twice(
    says: list[tuple[int, int, float]], refusals: list[int]
) -> None:
    server = Server(refusals)
    server.uneven = True
    told = recorder(server, workers=2)
    task = asyncio.create_task(told.run())
    last: dict[str, str] = {}
    for which, message, wait in says:
        last[f"p{which}"] = f"m{message}"
        told.condition(pod(f"p{which}"), f"m{message}")
        await asyncio.sleep(wait)
    assert await told.drain(600)
    if told.failed:  # the pod had changed: a later cycle says it again
        for name, message in last.items():
            told.condition(pod(name), message)
        assert await told.drain(600)
    for name, message in last.items():
        messages = [text for who, text in server.told if who == name]
        assert messages[-1:] == [message] or 409 in refusals
        assert any(refusals) or all(a != b for a, b in pairwise(messages))
    assert server.most <= 2 and told.dropped == 0
    count = server.tries
    for name, message in last.items():
        refused = f"/api/v1/namespaces/ns/pods/{name}/status" in server.refused  # whoever is, may say it again
        if not refused and [text for who, text in server.told if who == name][-1:] == [message]:
            told.condition(pod(name), message)
    await told.drain(10)
    assert server.tries == count, "what was told is not told again"
    task.cancel()


@virtual.timed
async def test_conditions_go_before_events_and_events_wait_for_bindings_but_not_for_ever() -> None:
    server, busy = Server(), True
    told = recorder(server, workers=1, busy=lambda: busy)
    told.scheduled(pod("a"), "node-1")
    told.condition(pod("b"), "no room")
    task = asyncio.create_task(told.run())
    await asyncio.sleep(OVERDUE - 1)
    assert server.told == [("b", "no room")]
    await asyncio.sleep(4)
    assert server.told[1:] == [("a", "Successfully assigned ns/a to node-1")]
    told.scheduled(pod("c"), "node-1")
    busy = False
    assert await told.drain(3)
    task.cancel()


@virtual.timed
async def test_events_go_by_half_of_the_connections_and_by_few_while_bindings_are_under_way() -> None:
    server, busy = Server(), True
    told = recorder(server, busy=lambda: busy)
    task = asyncio.create_task(told.run())
    for at in range(100):
        told.scheduled(pod(f"p{at}"), "node-1")
    await asyncio.sleep(OVERDUE + 3)
    assert (server.most, server.tries > 4) == (4, True), "a quarter of the workers"
    busy = False
    assert await told.drain(8)
    assert server.most == 16 and len(server.told) == 100
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 2, "nobody waits for work"
    task.cancel()


@virtual.timed
async def test_a_flood_is_bounded_and_counted_and_costs_no_condition() -> None:
    server = Server()
    told = recorder(server, bound=10)
    told.condition(pod("c"), "why")
    for at in range(100):
        told.event(pod(f"p{at}"), "Warning", "FailedScheduling", "x" * 2000, "Scheduling")
    assert told.dropped == 91 and len(told) == 10
    task = asyncio.create_task(told.run())
    assert await told.drain(60)
    assert server.asked[0] == "/api/v1/namespaces/ns/pods/c/status" and len(server.told) == 10
    assert {len(text) for name, text in server.told if name != "c"} == {1024}
    told.event(pod("p99"), "Warning", "FailedScheduling", "x" * 2000, "Scheduling")
    assert len(told) == 0, "the same within half an hour"
    await asyncio.sleep(1900)
    told.event(pod("p99"), "Warning", "FailedScheduling", "x" * 2000, "Scheduling")
    assert len(told) == 1
    task.cancel()


@virtual.timed
async def test_what_the_pod_already_says_is_not_told_and_what_is_past_is_taken_back() -> None:
    server = Server()
    told = recorder(server)
    now = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no room")
    told.condition(pod("a"), "no room", current=now)
    assert len(told) == 0
    told.condition(pod("a"), "other", current=now)
    assert len(told) == 1
    told.scheduled(pod("a"), "node")
    assert len(told) == 1, "only the event is left"
    told.condition(pod("b"), "why")
    told.forget("uid-b")
    task = asyncio.create_task(told.run())
    assert await told.drain(60)
    assert [name for name, _ in server.told] == ["a"]
    task.cancel()


@virtual.timed
async def test_a_busy_server_is_left_alone_and_a_rate_is_kept() -> None:
    server = Server([429] * 4)
    told = recorder(server, workers=4)
    for at in range(4):
        told.event(pod(f"p{at}"), "Normal", "R", "m", "A")
    task = asyncio.create_task(told.run())
    await asyncio.sleep(2.5)
    assert server.tries == 4, "nobody asks within the two seconds that the server wants"
    assert await told.drain(30) and told.sent == 4
    task.cancel()


def test_what_comes_while_it_ends_is_queued_and_no_trouble() -> None:
    class Slow(Server):
        async def call(self, *args: Any, **options: Any) -> bytes:
            try:
                return await super().call(*args, **options)
            except asyncio.CancelledError:
                told.condition(pod("late"), "at the very end")
                raise

    async def main() -> None:
        task = asyncio.create_task(told.run())
        told.condition(pod("p"), "waits")
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and told.is_pending("uid-late")

    told = recorder(Slow())
    virtual.run(main())


def test_conditions_wait_for_bindings_for_half_a_second_and_few_messages_take_few_connections() -> None:
    """A binding that comes after ten conditions, each on a connection of its own, waits for all of them."""

    async def main() -> None:
        server, busy = Server(), True
        told = recorder(server, busy=lambda: busy)
        task = asyncio.create_task(told.run())
        for at in range(10):
            told.condition(pod(f"p{at}"), "no room")
        await asyncio.sleep(CONDITION_OVERDUE - 0.1)
        assert not server.tries, "they wait for bindings"
        await asyncio.sleep(0.2)
        assert server.tries, "but not for long"
        busy = False
        assert await told.drain(10) and (server.most, len(server.told)) == (FEW, 10)
        for at in range(10):
            told.condition(pod(f"q{at}"), "no room")
        await asyncio.sleep(0.1)
        assert server.now == FEW, "nothing is bound"
        for at in range(200):
            told.condition(pod(f"r{at}"), "no room")
        await asyncio.sleep(1.1)
        assert server.now == 16, "many take half of the connections"
        assert await told.drain(30)
        task.cancel()

    virtual.run(main())


async def test_a_real_api_server_takes_both(plane: ControlPlane) -> None:
    async with Api(plane) as api, ApiClient(load(plane.kubeconfig("admin"))) as client:
        await api.create(make_node("node-0"))
        for name in ("one", "two"):
            await api.create(make_pod(name))
        told = EventRecorder(client, "host_1_abc")
        path = "/api/v1/namespaces/default/pods/"
        one, two = [(await client.get(path + name, Pod)).metadata for name in ("one", "two")]
        task = asyncio.create_task(told.run())
        told.condition(one, 'no "room": 8 of 8 GPUs')
        told.event(one, "Warning", "FailedScheduling", 'no "room"', "Scheduling")
        told.scheduled(two, "node-0")
        await client.bind("default", "two", two.uid, "node-0")
        told.condition(two, "too late: it is bound")
        assert await told.drain(10)
        assert (told.sent, told.failed, told.dropped) == (3, 1, 0)
        found = {c.type: c for c in (await client.get(path + "one", Pod)).status.conditions}["PodScheduled"]
        assert (found.status, found.reason, found.message) == ("False", "Unschedulable", 'no "room": 8 of 8 GPUs')
        bound = {c.type: c.status for c in (await client.get(path + "two", Pod)).status.conditions}
        assert bound["PodScheduled"] == "True"
        events = await api.list("events", "default")
        assert sorted((e["reason"], e["involvedObject"]["name"], e["message"]) for e in events) == [
            ("FailedScheduling", "one", 'no "room"'),
            ("Scheduled", "two", "Successfully assigned default/two to node-0"),
        ]
        assert {e["reportingComponent"] for e in events} == {"kant"}
        task.cancel()
