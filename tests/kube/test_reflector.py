"""The reflector: whatever happens to its lists and watches, the copy becomes what the server has."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube import virtual
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_pod
from tests.patience import PATIENCE_S

from kant.kube.connect.client import ApiClient, ApiError, ExpiredError
from kant.kube.connect.config import load
from kant.kube.follow.reflector import Reflector
from kant.kube.objects.views import Meta, PartialMetadata, Pod

FAULTS = ("none", "cut", "half", "twice", "silent", "gone", "refuse", "odd", "garbage", "unknown", "hang up")
FIELDS = "involvedObject.kind=Pod,source=karpenter"


class Server:
    """A history of one kind of objects, told with faults. Versions are 1, 2, 3, …"""

    def __init__(self, changes: list[tuple[int, str]], faults: list[str], pace: float) -> None:
        self.changes, self.faults, self.pace = changes, iter(faults), pace
        self.begin = virtual.now()
        self.lists = self.watches = self.oldest = 0
        self.fields = set[str]()  # selectors that were asked for

    def version(self) -> int:
        return min(len(self.changes), int((virtual.now() - self.begin) / self.pace))

    def state(self, version: int) -> dict[str, str]:
        """name → the version at which it became as it is"""
        state: dict[str, str] = {}
        for at, (which, what) in enumerate(self.changes[:version], 1):
            state.pop(f"o{which}", None)
            if what == "set":
                state[f"o{which}"] = str(at)
        return state

    def event(self, at: int) -> bytes:
        which, what = self.changes[at - 1]
        before = f"o{which}" in self.state(at - 1)
        kind = "DELETED" if what == "delete" else ("MODIFIED" if before else "ADDED")
        meta = {"name": f"o{which}", "resourceVersion": str(at)}
        return msgspec.json.encode({"type": kind, "object": {"metadata": meta}}) + b"\n"

    async def pages(self, path: str, view: Any, limit: int, *, on_malformed: Any, fields: str) -> AsyncIterator[Any]:
        self.fields.add(fields)
        self.lists += 1
        version = self.version()
        items = [view(Meta(name=name, resource_version=at)) for name, at in self.state(version).items()]
        fault = next(self.faults, "none")
        for at in range(0, len(items) + 1, 2):
            await asyncio.sleep(0.3)
            if at and fault == "gone":
                raise ExpiredError(410, "ExpiredError", "in the middle of a list")
            if fault == "refuse":
                raise ApiError(429, "TooManyRequests", "slow down", 3.0)
            yield items[at : at + 2], str(version)

    async def stream(self, path: str, params: dict[str, str], silence: float) -> AsyncIterator[bytes]:
        self.watches += 1
        assert params["allowWatchBookmarks"] == "true"
        self.fields.add(params.get("fieldSelector", ""))
        version, end = int(params["resourceVersion"]), virtual.now() + int(params["timeoutSeconds"])
        fault = next(self.faults, "none")
        if fault == "refuse":
            raise ApiError(500, "InternalError", "no")
        if fault == "gone":
            self.oldest = self.version()  # what was before is forgotten
        if fault == "gone" or version < self.oldest:
            yield b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"ExpiredError"}}\n'
            return
        if fault == "silent":
            await asyncio.sleep(silence)
            raise ApiError(0, "Timeout", "nothing came")
        if fault == "hang up":
            return
        if fault == "garbage":
            yield b"<html>\n"
        if fault == "unknown":
            yield b'{"type":"SURPRISE","object":{"metadata":{"resourceVersion":"999999"}}}\n'
        if fault == "odd":  # somebody else's object, which is not as its view says
            odd = {"metadata": {"name": "odd", "resourceVersion": str(version)}, "spec": {"priority": "high"}}
            yield msgspec.json.encode({"type": "MODIFIED", "object": odd}) + b"\n"
        while virtual.now() < end:
            await asyncio.sleep(self.pace)
            now = self.version()
            lines = b"".join(self.event(at) for at in range(version + 1, now + 1))
            if fault == "cut" and lines:
                return
            if fault == "half" and lines:
                yield lines[: len(lines) - 9]
                return
            if lines:
                yield lines[:5]
                yield lines[5:]
                if fault == "twice":
                    yield lines
            version = now
            bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(now)}}}
            yield msgspec.json.encode(bookmark) + b"\n"


MANY = [(at * 7 % 5, "set" if at % 3 else "delete") for at in range(60)]


@given(
    changes=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["set", "set", "delete"])), max_size=30),
    faults=st.lists(st.sampled_from(FAULTS), max_size=12),
    pace=st.sampled_from([0.1, 1.0, 7.0]),
    late=st.booleans(),
)
@example(MANY, ["none", "none", "twice", *FAULTS], 1.0, False)
@example(MANY, ["none", "gone", *FAULTS[::-1]], 3.0, True)
@example(MANY, ["none", *FAULTS, *FAULTS], 7.0, False)
@example([], [], 1.0, True)
@settings(max_examples=examples(15))
@virtual.timed
async def test_the_copy_becomes_what_the_server_has(
    changes: list[tuple[int, str]], faults: list[str], pace: float, late: bool
) -> None:
    """So it does where the view is imported with the first object, and only then."""
    # a deletion of what is not there is no change
    there: set[int] = set()
    real = []
    for which, what in changes:
        if what == "set" or which in there:
            real.append((which, what))
            (there.add if what == "set" else there.discard)(which)
    server = Server(real, faults, pace)
    server.begin -= pace * (len(real) // 2) * late  # some of it is there at first
    copy: dict[str, str] = {}
    told: list[tuple[str, str]] = []

    views: list[type[Pod]] = []

    def sink(change: str, pod: Pod) -> None:
        meta = pod.metadata
        assert isinstance(pod, Pod)
        assert (change == "added") == (meta.name not in copy) or change == "deleted", (change, meta, copy)
        if change == "deleted":
            assert copy.pop(meta.name, None) is not None
        else:
            copy[meta.name] = meta.resource_version
        told.append((change, meta.resource_version))

    def replace(pods: list[Pod]) -> None:
        assert all(isinstance(pod, Pod) for pod in pods)
        copy.clear()
        copy.update({pod.metadata.name: pod.metadata.resource_version for pod in pods})

    reflector = Reflector(
        server,  # type: ignore[arg-type]
        "/p",
        PartialMetadata if late else Pod,  # type: ignore[arg-type]
        sink,
        later=(lambda: views.append(Pod) or Pod) if late else None,  # type: ignore[func-returns-value]
        on_replace=replace,
        clock=virtual.now,
        watch=20.0,
        silence=15.0,
        rng=random.Random(1),
        fields=FIELDS,
    )
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(len(real) * pace + 500)
    assert reflector.synced.is_set() and not task.done() and server.fields == {FIELDS}
    assert copy == server.state(len(real))
    versions = [int(version) for _, version in told]
    assert versions == sorted(set(versions)), "in order, and nothing twice"
    assert len(views) == (late and bool(real or views))
    assert views == [] or real or "odd" in faults
    assert reflector.stale_for() <= pace + 1
    assert reflector.lists <= 1 + 2 * faults.count("gone")
    task.cancel()


def test_what_does_not_decode_is_told_and_its_end_is_known() -> None:
    lines = [
        {"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "u", "resourceVersion": "2"}, "spec": 7}},
        {"type": "ADDED", "object": {"metadata": {"name": "b", "resourceVersion": "3"}}},
        {"type": "MODIFIED", "object": {"metadata": {"name": "b", "labels": 1, "resourceVersion": "4"}}},
        {"type": "DELETED", "object": {"metadata": {"name": "a", "uid": "u", "resourceVersion": "5"}, "spec": 7}},
    ]

    class Odd(Server):
        async def stream(self, path: str, params: dict[str, str], silence: float) -> AsyncIterator[bytes]:
            if params["resourceVersion"] == "0":
                yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            await asyncio.sleep(1000)

    async def main() -> None:
        told: list[str] = []
        reflector = Reflector(
            Odd([], [], 1.0),  # type: ignore[arg-type]
            "/p",
            Pod,
            lambda change, pod: told.append(f"{change} {pod.metadata.name}"),
            on_replace=lambda pods: None,
            on_malformed=lambda meta, sentence: told.append(f"odd {meta.name}: {sentence}"),
        )
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(5)
        task.cancel()
        assert [line.split(":")[0] for line in told] == ["odd a", "added b", "odd b", "deleted a"]
        assert "$.object.spec" in told[0]

    virtual.run(main())


@virtual.timed
async def test_it_grows_stale_while_the_server_is_away_and_says_why() -> None:
    class Away(Server):
        async def stream(self, path: str, params: dict[str, str], silence: float) -> AsyncIterator[bytes]:
            raise ApiError(0, "Unreachable", "no connection")
            yield b""

    troubles: list[Any] = []
    reflector = Reflector(
        Away([], [], 1.0),  # type: ignore[arg-type]
        "/p",
        Pod,
        lambda change, pod: None,
        on_replace=lambda pods: None,
        on_trouble=troubles.append,
        clock=virtual.now,
    )
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(600)
    assert reflector.stale_for() > 590
    assert 20 <= len(troubles) <= 60, "often enough to heal soon, seldom enough to let a server start"
    task.cancel()


async def test_a_real_api_server_is_followed_through_an_outage(plane: ControlPlane) -> None:
    copy: dict[str, Pod] = {}
    async with Api(plane) as api, ApiClient(load(plane.kubeconfig("admin"))) as client:
        for name in ("one", "two", "three"):
            await api.create(make_pod(name))

        def sink(change: str, pod: Pod) -> None:
            copy[pod.metadata.name] = pod
            if change == "deleted":
                del copy[pod.metadata.name]

        def replace(pods: list[Pod]) -> None:
            assert all(isinstance(pod, Pod) for pod in pods)
            copy.clear()
            copy.update({pod.metadata.name: pod for pod in pods})

        path = "/api/v1/pods?labelSelector=absent%21%3Dx"
        reflector = Reflector(client, path, Pod, sink, on_replace=replace, limit=2)
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(reflector.synced.wait(), PATIENCE_S)
        assert sorted(copy) == ["one", "three", "two"]
        await api.create(make_pod("four"))
        await api.delete("/api/v1/namespaces/default/pods/one", grace_s=0)
        async with asyncio.timeout(PATIENCE_S):
            while sorted(copy) != ["four", "three", "two"]:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(plane.restart_apiserver)
        await api.delete("/api/v1/namespaces/default/pods/two", grace_s=0)
        async with asyncio.timeout(PATIENCE_S):
            while sorted(copy) != ["four", "three"]:
                await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
