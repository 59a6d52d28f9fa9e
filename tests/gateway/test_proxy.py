"""The router before engines in processes of their own: it decides as simulated, and loses nothing that can be kept."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping

import aiohttp
import numpy as np
import pytest
from tests.gateway.rig import FLAGS, SETTINGS, Client, Conductor, Mock, dispatcher, routing, start, start_mocks, stream
from tests.gateway.test_aside import Here
from tests.patience import PATIENCE_S

from kant.gateway.aside import Aside
from kant.gateway.gossip import Gossip
from kant.gateway.server import RouterServer
from kant.gateway.tenants import Tenant, Tenants
from kant.serving.fleet import simulate
from kant.serving.generate import arrivals
from kant.serving.requests import Requests
from kant.serving.routers import ROUTERS, router_named

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def mocks() -> Iterator[list[Mock]]:
    started = start_mocks(2)
    yield started
    for mock in started:
        mock.kill()


def drawn(seed: int, count: int = 24) -> Requests:
    """Requests that fill two small engines: some wait, some are preempted, some belong to programs."""
    draw = np.random.Generator(np.random.PCG64(seed))
    prompt, output = draw.integers(1, 400, count), draw.integers(1, 60, count)
    predicted = np.maximum(1, output + draw.integers(-20, 20, count)).astype(np.float64)
    return Requests(
        "drawn", arrivals(draw, count, 12.0), prompt, output, predicted=predicted, program=draw.integers(-1, 4, count)
    )


@pytest.mark.parametrize("name", ROUTERS)
def test_the_router_decides_as_simulated(name: str, mocks: list[Mock]) -> None:
    requests = drawn(len(name) + 1)

    async def played() -> list[int]:
        urls = [mock.url for mock in mocks]
        chosen, here = dispatcher(urls, router=name), Here(asyncio.Event())
        if chosen.router.costly:
            here.may.set()  # type: ignore[union-attr]
            chosen.aside = Aside(here)
        async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
            assert here.asked == chosen.router.costly  # it is ready before anybody comes
            where = await Conductor(session, url, urls).play(requests)
        assert here.asked == -chosen.router.costly  # it ends with the router
        return where

    simulated = simulate(requests, SETTINGS, 2, router=router_named(name), observed=True)
    assert asyncio.run(played()) == simulated.engine.tolist()
    assert name != "least-tokens" or simulated.preempted.sum() > 0  # the engines are full enough to matter


BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "x" * 40, "max_tokens": 5},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x" * 40}], "max_completion_tokens": 5},
    "/v1/responses": {"input": [{"role": "user", "content": "x" * 40}], "max_output_tokens": 5},
    "/v1/messages": {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 5},
}


@pytest.mark.parametrize("streams", [True, False])
def test_tokens_are_counted_by_tenant_and_model_whatever_the_form(streams: bool, mocks: list[Mock]) -> None:
    urls, key = [mock.url for mock in mocks], hashlib.sha256(b"k").hexdigest()

    async def run() -> str:
        async with (
            routing(dispatcher(urls), Tenants({key: Tenant("lab")}, None)) as (server, url),
            aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as session,
        ):
            server.dispatcher.backends[0].models = server.dispatcher.backends[1].models = frozenset({"llama-3-8b"})
            conductor = Conductor(session, url, urls)
            await conductor.reset()

            async def ask(path: str, body: dict[str, object]) -> bytes:
                said = {"model": "llama-3-8b", "stream": streams, **body}
                async with session.post(url + path, json=said) as answer:
                    assert answer.status == 200
                    return await answer.read()

            tasks = [asyncio.create_task(ask(path, body)) for path, body in BODIES.items()]
            async with asyncio.timeout(PATIENCE_S):
                while sum([(await conductor.clock(mock))["live"] for mock in urls]) < len(tasks):
                    await asyncio.sleep(0.002)
                for mock in urls:
                    await conductor.clock(mock, until=1000.0)
                answers = await asyncio.gather(*tasks)
            assert all(answer.count(b" tok") >= 5 for answer in answers)
            named = (b"event: response.output_text.delta\n", b"event: content_block_delta\n")
            assert not streams or [answer.count(name) for answer, name in zip(answers[2:], named, strict=True)] == [
                5,
                5,
            ]
            assert server.dispatcher.shares.of("lab") == 4 * (10 + 2 * 5)
            async with session.get(url + "/metrics") as answer:
                return await answer.text()

    said = asyncio.run(run())
    for kind, count in (("prompt", 40.0), ("output", 20.0)):
        assert f'kant_router_tenant_tokens_total{{kind="{kind}",model="llama-3-8b",tenant="lab"}} {count}' in said


def test_a_killed_backend_loses_what_it_had_and_says_so() -> None:
    engines = start_mocks(2)
    urls = [mock.url for mock in engines]

    async def run() -> list[Client]:
        async with routing(dispatcher(urls)) as (server, url), aiohttp.ClientSession() as session:
            conductor = Conductor(session, url, urls)
            for _ in range(4):  # round robin: two for each
                await conductor.send(20, 50)
            await conductor.advance(0.2)
            assert all(0 < client.tokens < 50 for client in conductor.clients)
            for _ in range(4):
                await conductor.send(20, 50)
            engines[0].kill()
            await conductor.settle(lambda: sum(client.over for client in conductor.clients) == 4)
            conductor.mocks = urls[1:]
            assert (await conductor.clock(urls[1]))["requests"] == 4  # any of the others may be what has killed it
            await conductor.clock(urls[1], until=1000.0)
            await asyncio.gather(*conductor.tasks)
            async with session.get(url + "/metrics") as answer:
                text = await answer.text()
            assert 'kant_router_lost_total{backend="0"} 2.0' in text
            assert 'kant_router_requests_total{backend="0",status="502"} 4.0' in text
            for _ in range(3):  # and who comes afterwards is served
                await conductor.send(20, 5)
            await conductor.clock(urls[1], until=2000.0)
            await asyncio.gather(*conductor.tasks)
            assert [client.tokens for client in conductor.clients[8:]] == [5, 5, 5]
            assert not any(backend.rows for backend in server.dispatcher.backends)
            return conductor.clients[:8]

    clients = asyncio.run(run())
    engines[1].kill()
    cut = [client for client in clients if client.error]
    assert len(cut) == 2
    assert all(0 < client.tokens < 50 and "backend_lost" in client.error and not client.finished for client in cut)
    assert [client.status for client in clients].count(502) == 2
    whole = [client for client in clients if client.backend == "1"]
    assert len(whole) == 4 and all(client.tokens == 50 and client.finished for client in whole)


def test_requests_are_held_in_order_of_priority_and_engines_are_told_of_it(mocks: list[Mock]) -> None:
    urls = [mocks[0].url]

    async def run() -> list[tuple[int, int]]:
        chosen = dispatcher(urls, policy="plas", in_flight=1)
        order: list[tuple[int, int]] = []
        async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            await conductor.send(10, 200, headers={"x-kant-program": "old"})
            await conductor.advance(100.0)
            await conductor.send(10, 5)
            for i, program in enumerate(("old", "new", "old", "fresh")):  # the old one has had service
                client = Client()
                conductor.clients.append(client)
                headers = {"x-kant-program": program}
                conductor.tasks.append(
                    asyncio.create_task(stream(session, url, 11 + i, 5, client, headers=headers, vllm_xargs={"a": 1}))
                )
                await conductor.settle(lambda i=i: sum(map(len, chosen.held.values())) == i + 1)
            for k in range(4):
                await conductor.clock(urls[0], until=200.0 + k)
                async with asyncio.timeout(PATIENCE_S):
                    while (row := await conductor.clock(urls[0]))["requests"] < 3 + k:
                        await asyncio.sleep(0.001)
                latest = row["latest"]
                assert latest["vllm_xargs"]["a"] == 1  # type: ignore[index]
                order.append((latest["vllm_xargs"]["program_id"], latest["priority"]))  # type: ignore[index]
            await conductor.clock(urls[0], until=1000.0)
            await asyncio.gather(*conductor.tasks)
        return order

    assert asyncio.run(run()) == [("new", 0), ("fresh", 0), ("old", 2), ("old", 2)]


async def test_a_tenant_over_its_limit_waits_for_nobody(mocks: list[Mock]) -> None:
    urls = [mocks[0].url]
    key = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"  # of "password"
    tenants = Tenants({key: Tenant("lab", in_flight=1)}, None)
    async with routing(dispatcher(urls), tenants) as (_, url), aiohttp.ClientSession() as session:
        conductor = Conductor(session, url, urls)
        await conductor.reset()
        headers = {"Authorization": "Bearer password"}
        await conductor.send(5, 5, headers=headers)
        statuses = []
        for header in (headers, {"Authorization": "Bearer guess"}, {}):
            client = Client()
            await stream(session, url, 5, 5, client, headers=header)
            statuses.append(client.status)
        assert statuses == [429, 401, 401]
        await conductor.advance(100.0)
        await conductor.send(5, 5, headers=headers)
        await conductor.advance(200.0)
        assert [client.tokens for client in conductor.clients] == [5, 5]


def test_what_the_router_knows_is_behind_the_key_and_a_client_cannot_go_first(mocks: list[Mock]) -> None:
    urls = [mocks[0].url]
    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("lab", "urgent")}
    tenants = Tenants({keys["lab"]: Tenant("lab", priority=5), keys["urgent"]: Tenant("urgent", priority=-5)}, None)

    async def run() -> list[tuple[int, int]]:
        chosen = dispatcher(urls, policy="priority", in_flight=1)
        order = []
        async with routing(chosen, tenants) as (server, url), aiohttp.ClientSession() as session:
            for path in ("/metrics", "/v1/models"):
                for method in ("GET", "HEAD"):
                    for key, status in (("", 401), ("Bearer guess", 401), ("Bearer lab", 200)):
                        async with session.request(method, url + path, headers={"Authorization": key}) as answer:
                            assert answer.status == status
                            assert status == 200 or b"kant" not in await answer.read()
            async with session.get(url + "/health") as answer:
                assert answer.status == 200 and not await answer.read()
            async with session.get(f"http://127.0.0.1:{server.operators_port}/metrics") as answer:
                assert answer.status == 200
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            await conductor.send(10, 5, headers={"Authorization": "Bearer lab"})
            asks: list[tuple[str, dict[str, object], dict[str, str]]] = [
                ("lab", {"priority": -1000}, {}),
                ("lab", {"priority": 7}, {}),
                ("lab", {}, {"x-kant-predicted-tokens": "0", "x-kant-program": "new"}),
                ("lab", {"priority": "-9"}, {}),
                ("urgent", {}, {}),
                ("urgent", {"priority": -6}, {}),
            ]
            for i, (key, fields, more) in enumerate(asks):
                client = Client()
                conductor.clients.append(client)
                headers = {"Authorization": f"Bearer {key}", **more}
                conductor.tasks.append(
                    asyncio.create_task(stream(session, url, 11 + i, 5, client, headers=headers, **fields))
                )
                await conductor.settle(lambda i=i: chosen.waiting == i + 1)
            assert all(placed.predicted == 5 for queue in chosen.held.values() for placed in queue)
            for k in range(len(asks)):
                await conductor.clock(urls[0], until=200.0 + k)
                async with asyncio.timeout(PATIENCE_S):
                    while (row := await conductor.clock(urls[0]))["requests"] < 2 + k:
                        await asyncio.sleep(0.001)
                prompt = next(p for p in chosen.backends[0].rows.values()).prompt
                order.append((prompt - 11, row["latest"]["priority"]))  # type: ignore[index]
            await conductor.clock(urls[0], until=1000.0)
            await asyncio.gather(*conductor.tasks)
        return order

    assert asyncio.run(run()) == [(4, -5), (5, -5), (0, 5), (2, 5), (3, 5), (1, 7)]


async def test_a_client_that_goes_away_ends_its_request_on_the_engine(mocks: list[Mock]) -> None:
    urls = [mocks[0].url]
    chosen = dispatcher(urls)
    async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
        conductor = Conductor(session, url, urls)
        await conductor.reset()
        await conductor.send(5, 50)
        await conductor.advance(0.1)
        conductor.tasks[0].cancel()
        await conductor.settle(lambda: not chosen.backends[0].rows)
        async with asyncio.timeout(PATIENCE_S):
            now = 0.1
            while (await conductor.clock(urls[0], until=now))["live"]:
                now += 0.02
                await asyncio.sleep(0.001)
        assert (await conductor.clock(urls[0]))["tokens"] < 50


async def test_a_drained_backend_gets_nothing_and_a_drained_router_ends_what_it_has(mocks: list[Mock]) -> None:
    urls = [mock.url for mock in mocks]
    async with routing(dispatcher(urls)) as (server, url), aiohttp.ClientSession() as session:
        conductor = Conductor(session, url, urls)
        await conductor.reset()
        operators = f"http://127.0.0.1:{server.operators_port}/backends"
        async with session.post(operators + "/0/drain") as answer:
            assert (await answer.json())["draining"]
        assert [await conductor.send(5, 5) for _ in range(2)][-1] == [0, 2]
        async with session.post(operators + "/0/resume", headers={"Origin": "http://evil"}) as answer:
            assert answer.status == 403
        async with session.post(operators + "/0/resume") as answer:
            assert not (await answer.json())["draining"]
        assert [await conductor.send(5, 5) for _ in range(2)][-1] == [1, 3]
        drained = asyncio.create_task(server.drain())
        await asyncio.sleep(0)
        late = Client()
        await stream(session, url, 5, 5, late)
        assert late.status == 503 and not drained.done()
        async with session.get(url + "/health") as answer:
            assert answer.status == 503
        await conductor.advance(100.0)
        await drained
        assert [client.tokens for client in conductor.clients] == [5] * 4


class Told:
    """A source of addresses that says what it is told."""

    def __init__(self, first: Mapping[str, bool]) -> None:
        self.first = first
        self.tell: Callable[[Mapping[str, bool]], None] = lambda _: None

    async def now(self) -> Mapping[str, bool]:
        return self.first

    async def follow(self, tell: Callable[[Mapping[str, bool]], None]) -> None:
        self.tell = tell


async def test_backends_come_and_go_and_who_goes_ends_what_it_has(mocks: list[Mock]) -> None:
    one, two = (mock.url for mock in mocks)
    source = Told({})
    chosen = dispatcher([], in_flight=1)
    async with routing(chosen, source=source) as (server, url), aiohttp.ClientSession() as session:
        conductor = Conductor(session, url, [one, two])
        await conductor.reset()
        early = Client()  # nobody is there: it waits
        waits = asyncio.create_task(stream(session, url, 5, 5, early))
        await conductor.settle(lambda: chosen.held)
        source.tell({one: True})
        async with asyncio.timeout(PATIENCE_S):
            while not (await conductor.clock(one))["requests"]:
                await asyncio.sleep(0.001)
        source.tell({one: False, two: True})  # it terminates
        assert (await conductor.send(5, 5))[1] == 1
        held = Client()
        also = asyncio.create_task(stream(session, url, 5, 5, held))
        await conductor.settle(lambda: chosen.held)
        source.tell({two: True})  # and its address is gone
        assert [(b.url, b.leaving, len(b.rows)) for b in chosen.backends] == [(one, True, 1), (two, False, 1)]
        assert b'in_flight{backend="0"} 1.0' in server.proxy.meters.text(chosen)
        await conductor.clock(one, until=100.0)
        await waits
        assert early.tokens == 5 and early.finished and chosen.held  # its place is nobody's any more
        assert [b.number for b in chosen.backends] == [1]
        assert b'in_flight{backend="0"}' not in server.proxy.meters.text(chosen)
        await conductor.clock(two, until=100.0)
        await conductor.settle(lambda: not chosen.held)
        await conductor.clock(two, until=200.0)
        await also
        assert held.tokens == 5
        source.tell({one: True, two: True})  # who comes back is a backend like a new one
        assert [(b.url, b.number) for b in chosen.backends] == [(two, 1), (one, 2)]
        assert sorted(server.backends.looks) == [1, 2]


def test_the_command_counts_what_peers_have_and_ends_what_it_has_when_told_to_stop(mocks: list[Mock]) -> None:
    urls = [mock.url for mock in mocks]
    other = dispatcher(urls)
    with socket.socket(type=socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        here = found.getsockname()

    async def run() -> int:
        peer = Gossip(other, ("127.0.0.1", 0), [here])
        await peer.open()
        router = await asyncio.to_thread(
            start, "route", "--backends", ",".join(urls), "--router", "dodoor", "--operators", "127.0.0.1:0",
            "--gossip", f"{here[0]}:{here[1]}", "--peers", f"127.0.0.1:{peer.port}", *FLAGS,
        )  # fmt: skip
        operators = (await asyncio.to_thread(router.process.stdout.readline)).split("/backends")[0]  # type: ignore[union-attr]
        other.backends[0].site.send(1, 500, 1.0)
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
                conductor = Conductor(session, router.url, urls)
                await conductor.reset()
                async with session.get(router.url + "/v1/models") as answer:
                    assert "data" in await answer.json()
                tokens: list[int] = []
                while tokens != [500, 0]:
                    async with session.get(operators + "/backends") as answer:
                        tokens = [row["tokens"] for row in await answer.json()]
                assert sum([await conductor.send(5, 5) for _ in range(2)][-1]) == 2
                while sum(b.site.tokens() for b in other.backends) != 510:
                    await asyncio.sleep(0.005)
                router.process.send_signal(signal.SIGTERM)
                await conductor.advance(100.0)
                assert [client.tokens for client in conductor.clients] == [5, 5]
            return await asyncio.to_thread(router.process.wait, PATIENCE_S)
        finally:
            router.kill()
            peer.close()

    assert asyncio.run(run()) == 0


def test_routers_that_share_a_port_share_the_requests_and_each_says_its_own(mocks: list[Mock]) -> None:
    urls = [mock.url for mock in mocks]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    async def answered(server: RouterServer, session: aiohttp.ClientSession) -> int:
        async with session.get(f"http://127.0.0.1:{server.operators_port}/metrics") as answer:
            rows = re.findall(r"^kant_router_requests_total{.*} (\S+)", await answer.text(), re.MULTILINE)
        return int(sum(map(float, rows)))

    async def run() -> None:
        async with (
            routing(dispatcher(urls), shares=port) as (one, url),
            routing(dispatcher(urls), shares=port) as (two, again),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        ):
            assert url == again
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            for _ in range(40):
                await conductor.send(5, 1)
                await conductor.advance(1000.0 + len(conductor.clients))
            await asyncio.gather(*conductor.tasks)
            assert all(client.finished for client in conductor.clients)
            counts = [await answered(server, session) for server in (one, two)]
            assert sum(counts) == 40 and min(counts) > 0

    asyncio.run(run())
