"""What one binding and one event cost the API server, etcd and the client, by how they are asked for.

`python -m benchmarks.kubernetes_costs [COUNT [ROUNDS]]`: CPU-milliseconds for each request, the least of the rounds, in
which the ways take turns. Nothing else talks to the control plane, but for a watch of the pods where a way says so.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from benchmarks.kubernetes_binder import EVENTS, binding, event
from benchmarks.kubernetes_load import NAMESPACE, NODES, PODS, Meta, Watch, nodes, pod
from benchmarks.kubernetes_rig import Api, Plane

PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON = "application/json"
CORE_EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
NODE = "node-00000"


@dataclass(frozen=True)
class Way:
    """How to ask: `path` and `body` of a pod, over so many connections; `accept`: the form of the reply."""

    name: str
    path: Callable[[Meta], str]
    body: Callable[[Meta], bytes]
    kind: str = JSON
    accept: str = JSON
    connections: int = 16
    watched: bool = False


def field(number: int, *values: bytes | str | int) -> bytes:
    """Fields of protocol buffers with one number: strings and messages, or numbers."""
    parts = []
    for value in values:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(raw)) + raw)
    return b"".join(parts)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    """runtime.Unknown after the four bytes that mark protocol buffers of Kubernetes."""
    return b"k8s\x00" + field(1, field(1, version) + field(2, kind)) + field(2, raw)


def binding_protobuf(pod: Meta) -> bytes:
    meta = field(1, pod.name) + field(3, NAMESPACE) + field(5, pod.uid)
    return envelope("v1", "Binding", field(1, meta) + field(2, field(1, "Node") + field(3, NODE)))


def event_protobuf(pod: Meta) -> bytes:
    now = time.time_ns()
    meta = field(1, f"{pod.name}.{now:x}") + field(3, NAMESPACE)
    when = field(1, now // 10**9) + field(2, now % 10**9 // 1000 * 1000)
    about = field(1, "Pod") + field(2, NAMESPACE) + field(3, pod.name) + field(4, pod.uid) + field(5, "v1")
    return envelope(
        "events.k8s.io/v1", "Event",
        field(1, meta) + field(2, when) + field(4, "binder") + field(5, "binder-0") + field(6, "Binding")
        + field(7, "Scheduled") + field(8, about)
        + field(10, f"Successfully assigned {NAMESPACE}/{pod.name} to {NODE}") + field(11, "Normal"),
    )  # fmt: skip


def to_bind(pod: Meta) -> str:
    return f"{PODS}/{pod.name}/binding"


def json_bind(pod: Meta) -> bytes:
    return binding(pod, NODE)


BINDS = [
    Way("bind, JSON, 16 connections", to_bind, json_bind),
    Way("bind, JSON, 4 connections", to_bind, json_bind, connections=4),
    Way("bind, JSON, 64 connections", to_bind, json_bind, connections=64),
    Way("bind, JSON, pods watched", to_bind, json_bind, watched=True),
    Way("bind, protobuf, reply too", to_bind, binding_protobuf, PROTOBUF, PROTOBUF),
    Way("bind, protobuf, reply JSON", to_bind, binding_protobuf, PROTOBUF),
]
TOLD = [
    Way("event, events.k8s.io, JSON", lambda _: EVENTS, lambda pod: event(pod, NODE)),
    Way("event, events.k8s.io, 8 conns", lambda _: EVENTS, lambda pod: event(pod, NODE), connections=8),
    Way("event, events.k8s.io, 32 conns", lambda _: EVENTS, lambda pod: event(pod, NODE), connections=32),
    Way("event, core v1, JSON", lambda _: CORE_EVENTS, lambda pod: event(pod, NODE, "v1")),
    Way("event, protobuf, reply too", lambda _: EVENTS, event_protobuf, PROTOBUF, PROTOBUF),
    Way("event, protobuf, reply JSON", lambda _: EVENTS, event_protobuf, PROTOBUF),
]


async def cost(plane: Plane, way: Way, pods: list[Meta]) -> tuple[float, ...]:
    """Milliseconds for each request: CPU of the API server, of etcd, of this client, and the wall."""
    async with Api(plane.config, way.connections) as api, Api(plane.config) as second:
        watch = Watch(second)
        if way.watched:
            await watch.start()
        waiting = iter(pods)

        async def worker() -> None:
            for each in waiting:
                status, reply = await api.send("POST", way.path(each), way.body(each), way.kind, Accept=way.accept)
                if status != 201:
                    raise RuntimeError(f"{way.name}: {status} {reply[:300]!r}")

        await asyncio.gather(*(api.send("GET", "/version") for _ in range(way.connections)))
        before, mine, began = plane.cpu(), time.process_time(), time.monotonic()
        await asyncio.gather(*(worker() for _ in range(way.connections)))
        wall, client, after = time.monotonic() - began, time.process_time() - mine, plane.cpu()
        await watch.stop()
    spent = [after[name] - before[name] for name in ("kube-apiserver", "etcd")]
    return tuple(1000 * each / len(pods) for each in (*spent, client, wall))


async def compare(plane: Plane, count: int, rounds: int) -> None:
    best: dict[str, tuple[float, ...]] = {}
    async with Api(plane.config) as api:
        await api.post_all(NODES, nodes(1))
        for turn in range(rounds):
            for number, way in enumerate(BINDS):
                names = [f"pod-{turn}-{number}-{i}" for i in range(count)]
                await api.post_all(PODS, [pod(name, "nobody") for name in names])
                pods = [Meta(**msgspec.structs.asdict(each)) for each in await unbound(api)]
                note(best, way, await cost(plane, way, pods))
                if number < len(TOLD):
                    note(best, TOLD[number], await cost(plane, TOLD[number], pods))
    print(f"{'CPU-ms for each request':30}  apiserver    etcd  client    wall")
    for way in BINDS + TOLD:
        print(f"{way.name:30} " + "  ".join(f"{each:8.3f}" for each in best[way.name]))


def note(best: dict[str, tuple[float, ...]], way: Way, found: tuple[float, ...]) -> None:
    best[way.name] = tuple(map(min, best.get(way.name, found), found))


async def unbound(api: Api) -> list[Meta]:
    page = await api.get(f"{PODS}?fieldSelector=spec.nodeName%3D")
    return [msgspec.convert(each["metadata"], Meta) for each in page["items"]]


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    count, rounds = given + [1000, 3][len(given) :]
    with Plane() as plane:
        asyncio.run(compare(plane, count, rounds))


if __name__ == "__main__":
    main()
