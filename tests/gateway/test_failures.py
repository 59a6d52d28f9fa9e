"""Engines that fail before the router: few clients notice, no request breaks two engines, nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest
from tests.gateway.engines import STREAM, TOKEN, Behaviour, FakeEngine, answer, chunk, engines, says, stalls, well
from tests.gateway.rig import dispatcher, routing
from tests.patience import PATIENCE_S

from kant.gateway.outliers import Ejection
from kant.gateway.timeouts import Timeouts

BODY = {"prompt": "x", "max_tokens": 3}


async def ask(session: aiohttp.ClientSession, url: str, **more: object) -> tuple[int, str]:
    """Ask once; the status and the text of the answer."""
    async with session.post(url + "/v1/completions", json={**BODY, **more}) as got:
        return got.status, (await got.read()).decode("utf-8", "replace")


async def closed_loop(url: str, count: int, workers: int) -> Counter[int]:
    """So many requests of some clients, each the next when it has its answer; the statuses."""
    statuses: Counter[int] = Counter()
    left = iter(range(count))

    async def client(session: aiohttp.ClientSession) -> None:
        for _ in left:
            statuses[(await ask(session, url))[0]] += 1

    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(client(session) for _ in range(workers)))
    return statuses


FAILS = {
    "500": says(answer(500)),
    "503": says(answer(503)),
    "garbage": says(b"nonsense\r\n\r\n", close=True),
    "no JSON": says(answer(200, b"<html>")),
    "closes at once": says(close=True),
    "closes in its head": says(b"HTTP/1.1 200 OK\r\nConte", close=True),
    "closes in its answer": says(answer(200, b'{"cho', 900), close=True),
    "closes in its stream": says(STREAM, chunk(TOKEN), close=True),
    "empty stream": says(STREAM, b"0\r\n\r\n"),
}
SAFE = ("503", "closes at once")
"""The engine has refused the request, or lives after the connection was closed without a byte: it is sent again."""


@pytest.mark.parametrize(
    ("fails", "router"),
    [*((fails, "least-tokens") for fails in FAILS), ("500", "round-robin"), ("503", "shortest-queue")],
)
async def test_an_engine_whose_answers_fail_is_ejected_and_few_clients_notice(fails: str, router: str) -> None:
    workers = 8
    async with (
        engines(FAILS[fails], well, well) as (made, urls),
        routing(dispatcher(urls, router=router)) as (server, url),
    ):
        statuses = await closed_loop(url, 120, workers)
        # when the third answer fails, at most the other workers have requests there
        assert 3 <= len(made[0].asked) <= 3 + workers - 1
        retried = sum(len(engine.asked) for engine in made) - 120
        assert min(3, len(made[0].asked)) <= retried if fails in SAFE else retried == 0
        lost = 120 - statuses[200] + (len(made[0].asked) if fails == "closes in its stream" else 0)
        assert lost == len(made[0].asked) - retried
        text = server.proxy.meters.text(server.dispatcher).decode()
        assert 'kant_router_ejections_total{backend="0"} 1.0' in text
        assert 'kant_router_backend_ejected{backend="0"} 1.0' in text
        assert 'kant_router_backend_up{backend="0"} 1.0' in text and "kant_router_panic 0.0" in text


def test_where_every_engine_fails_all_are_used_and_the_first_good_answer_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = False

    async def maybe(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(answer(200 if good else 500))

    async def run() -> None:
        nonlocal good
        async with engines(maybe, maybe) as (made, urls), routing(dispatcher(urls)) as (server, url):
            assert await closed_loop(url, 40, 4) == {500: 40}
            assert all(len(engine.asked) >= 15 for engine in made)  # nobody is left out
            assert b"kant_router_panic 1.0" in server.proxy.meters.text(server.dispatcher)
            good = True
            assert await closed_loop(url, 10, 1) == {200: 10}
            assert [backend.health.ejected for backend in server.dispatcher.backends].count(True) == 1
            assert b"kant_router_panic 0.0" in server.proxy.meters.text(server.dispatcher)

    caplog.set_level("INFO", "kant.gateway")
    asyncio.run(run())
    said = Counter(record.message for record in caplog.records)
    assert said["ejected, as its answers fail"] == 2
    assert said["every backend is ejected, so all are used"] == said["back in service"] == 1


async def test_what_clients_do_wrong_ejects_nobody() -> None:
    for status in (400, 404, 422, 429, 501):
        async with engines(says(answer(status))) as (_, urls), routing(dispatcher(urls)) as (server, url):
            assert await closed_loop(url, 10, 2) == {status: 10}
            assert server.dispatcher.backends[0].health.failures == 0


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("load", [0, 12])
def test_a_request_that_kills_its_engine_kills_no_second_one(kept: bool, load: int) -> None:
    async def poisonable(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        if b"poison" in body:
            engine.die()
        else:
            await well(engine, writer, body)

    async def run() -> None:
        async with (
            engines(poisonable, poisonable, poisonable) as (made, urls),
            routing(dispatcher(urls), retries=5) as (_, url),
            aiohttp.ClientSession() as session,
        ):
            if kept:
                await closed_loop(url, 30, 6)
            others = [asyncio.create_task(ask(session, url)) for _ in range(load)]
            if load:
                async with asyncio.timeout(PATIENCE_S):
                    while not all(len(engine.asked) > load // 6 for engine in made):
                        await asyncio.sleep(0)
            status, text = await ask(session, url, prompt="poison")
            assert status == 502 and "is not retried" in text
            assert [engine.dead for engine in made].count(True) == 1
            statuses = [status for status, _ in await asyncio.gather(*others)]
            assert statuses.count(200) >= 2 * load // 3 and set(statuses) <= {200, 502}
            assert sum(b"poison" in body for engine in made for body in engine.asked) == 1
            assert await closed_loop(url, 10, 2) == {200: 10}

    asyncio.run(run())


async def test_a_connection_that_closes_just_when_it_is_used_again_costs_nothing() -> None:
    async def closes_once(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        if len(engine.asked) % 2:
            writer.write(answer(200))
        else:
            writer.close()  # it had closed the connection when the request came

    async with engines(closes_once, well) as (made, urls), routing(dispatcher(urls)) as (server, url):
        server.dispatcher.backends[1].draining = True
        server.dispatcher.ejection = Ejection(after=1)
        assert await closed_loop(url, 9, 1) == {200: 9}
        assert len(made[0].asked) == 17 and not made[1].asked  # all but the first were sent twice
        assert b"kant_router_ejections_total{" not in server.proxy.meters.text(server.dispatcher)
        assert b'kant_router_retries_total{backend="0"} 8.0' in server.proxy.meters.text(server.dispatcher)


@pytest.mark.parametrize("fails", [fails for fails in FAILS if fails not in SAFE])
@pytest.mark.parametrize("kept", [False, True])
def test_what_an_engine_has_begun_reaches_no_other(fails: str, kept: bool) -> None:
    async def behave(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        await (well if b"warm" in body else FAILS[fails])(engine, writer, body)

    async def run() -> None:
        async with (
            engines(behave, behave, behave) as (made, urls),
            routing(dispatcher(urls), retries=5) as (server, url),
            aiohttp.ClientSession() as session,
        ):
            for _ in range(3 if kept else 0):
                await ask(session, url, prompt="warm")
            status, text = await ask(session, url, prompt="x")
            reached = [sum(b"warm" not in body for body in engine.asked) for engine in made]
            assert sorted(reached) == [0, 0, 1]
            if fails == "500":  # handed on as it is
                assert status == 500
            else:
                assert status == (200 if "in its stream" in fails else 502) and "backend_lost" in text
            assert not any(backend.rows for backend in server.dispatcher.backends)
            assert server.proxy.budget.used == 0

    asyncio.run(run())


def test_retries_are_within_a_budget_of_what_there_is() -> None:
    """Of 100 requests that are refused at once, 20 are sent again; of 4, three are."""

    async def run(count: int, again: int) -> None:
        go = asyncio.Event()

        async def refuses(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
            if not go.is_set():
                await go.wait()
                writer.write(answer(429))
                return
            while sum(len(engine.asked) for engine in made) < count + again:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)  # whoever else would come has come
            writer.write(answer(429))

        async with (
            engines(refuses, refuses) as (made, urls),
            routing(dispatcher(urls), retries=1) as (server, url),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.timeout(PATIENCE_S),
        ):
            asks = [asyncio.create_task(ask(session, url)) for _ in range(count)]
            while sum(len(engine.asked) for engine in made) < count:
                await asyncio.sleep(0.001)
            go.set()
            assert {status for status, _ in await asyncio.gather(*asks)} == {429}
            assert sum(len(engine.asked) for engine in made) == count + again
            text = server.proxy.meters.text(server.dispatcher).decode()
            assert f"kant_router_retries_over_budget_total {count - again}.0" in text
            assert server.proxy.budget.used == 0

    asyncio.run(run(100, 20))
    asyncio.run(run(4, 3))


async def test_what_was_never_sent_goes_elsewhere_whatever_the_budget() -> None:
    async with engines(well) as (made, urls), routing(dispatcher(["http://127.0.0.1:1", *urls])) as (server, url):
        server.proxy.budget.least, server.proxy.budget.share = 0, 0.0
        assert await closed_loop(url, 20, 10) == {200: 20}
        assert len(made[0].asked) == 20


STALLS: dict[str, tuple[Behaviour, bool, str, Timeouts]] = {
    "no head": (stalls(), False, "nothing for 0.05", Timeouts(0.05, 60.0)),
    "in its head": (stalls(b"HTTP/1.1 200 OK\r\nConte"), False, "nothing for 0.05", Timeouts(0.05, 60.0)),
    "no token": (stalls(STREAM), False, "nothing for 0.05", Timeouts(0.05, 60.0)),
    "no body": (stalls(answer(200, b"", 50)), False, "nothing for 0.05", Timeouts(0.05, 60.0)),
    "between tokens": (stalls(STREAM, chunk(TOKEN)), True, "nothing more for 0.05", Timeouts(60.0, 0.05)),
    "in a chunk": (stalls(STREAM, chunk(TOKEN), b"20\r\nab"), True, "nothing more for 0.05", Timeouts(60.0, 0.05)),
    "in its body": (stalls(answer(200, b"{", 50)), False, "nothing more for 0.05", Timeouts(60.0, 0.05)),
    "in all": (stalls(STREAM, chunk(TOKEN)), True, "not ended after 0.05", Timeouts(0.0, 0.0, 0.05)),
    "in all, no head": (stalls(), False, "not ended after 0.05", Timeouts(0.0, 0.0, 0.05)),
}


@pytest.mark.parametrize("where", STALLS)
async def test_an_engine_that_stalls_is_left_and_its_client_told(where: str) -> None:
    behave, begun, said, timeouts = STALLS[where]
    async with (
        engines(behave, behave) as (made, urls),
        routing(dispatcher(urls), timeouts=timeouts) as (server, url),
        aiohttp.ClientSession() as session,
        asyncio.timeout(PATIENCE_S),
    ):
        status, text = await ask(session, url, stream=True)
        assert said in text and '"code":504' in text and '"type":"timeout"' in text
        assert status == (200 if begun else 504) and "[DONE]" not in text
        assert text.startswith(TOKEN.decode()) == begun
        assert not any(backend.rows for backend in server.dispatcher.backends)
        while not made[0].closed:  # the engine hears of it
            await asyncio.sleep(0.001)
        assert not made[1].asked
        assert server.dispatcher.backends[0].health.failures == ("in all" not in where)
        assert b'kant_router_timeouts_total{backend="0"' in server.proxy.meters.text(server.dispatcher)


def test_an_engine_that_goes_on_is_not_left() -> None:
    """Forty tokens, each within the time between two, together longer than it; the whole has no limit."""

    async def slow(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(STREAM)
        for _ in range(40):
            writer.write(chunk(TOKEN))
            await asyncio.sleep(0.02)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def run() -> None:
        async with (
            engines(slow) as (_, urls),
            routing(dispatcher(urls), timeouts=Timeouts(0.5, 0.5)) as (_, url),
            aiohttp.ClientSession() as session,
        ):
            status, text = await ask(session, url, stream=True)
            assert status == 200 and text.count("choices") == 40 and text.endswith("data: [DONE]\n\n")

    asyncio.run(run())


async def test_a_stream_that_is_done_ends_though_its_engine_does_not_close_it() -> None:
    behave = stalls(STREAM, chunk(TOKEN + b"data: [DONE]\n\n"))
    async with (
        engines(behave) as (made, urls),
        routing(dispatcher(urls), timeouts=Timeouts(60.0, 0.05)) as (server, url),
        aiohttp.ClientSession() as session,
        asyncio.timeout(PATIENCE_S),
    ):
        assert await ask(session, url, stream=True) == (200, (TOKEN + b"data: [DONE]\n\n").decode())
        while not made[0].closed:
            await asyncio.sleep(0.001)
        assert server.dispatcher.backends[0].health.failures == 0


def test_a_client_that_reads_nothing_is_left_and_no_engine_is_blamed() -> None:
    async def floods(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(STREAM)
        try:
            while not writer.is_closing():
                writer.write(chunk(b"data: " + b"x" * 50_000 + b"\n\n"))
                await writer.drain()
        finally:
            engine.closed += 1

    async def run() -> None:
        async with (
            engines(floods) as (made, urls),
            routing(dispatcher(urls), timeouts=Timeouts(60.0, 0.2)) as (server, url),
            asyncio.timeout(PATIENCE_S),
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1 << 12)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            while not made[0].closed:
                await asyncio.sleep(0.001)
            while server.proxy.in_flight:
                await asyncio.sleep(0.001)
            backend = server.dispatcher.backends[0]
            assert not backend.rows and backend.health.failures == 0
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("deadline", [True, False])
async def test_a_request_that_is_held_ends_with_its_whole_time_or_its_deadline(deadline: bool) -> None:
    async with (
        engines(well) as (_, urls),
        routing(dispatcher(urls), timeouts=Timeouts(total_s=0.0 if deadline else 0.05)) as (server, url),
        aiohttp.ClientSession(headers={"x-kant-deadline-s": "0.05"} if deadline else {}) as session,
    ):
        server.dispatcher.backends[0].draining = True
        status, text = await ask(session, url)
        assert status == 504 and "no backend had capacity within 0.05 seconds" in text
        assert not server.dispatcher.held and server.dispatcher.waiting == 0


async def test_whoever_waits_goes_to_an_ejected_engine_when_its_time_is_over() -> None:
    async def fails_once(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(answer(500 if len(engine.asked) == 1 else 200))

    chosen = dispatcher([], in_flight=1)
    chosen.ejection = Ejection(after=1, base_s=0.2)
    async with (
        engines(fails_once, stalls()) as (made, urls),
        routing(chosen) as (_, url),
        aiohttp.ClientSession() as session,
        asyncio.timeout(PATIENCE_S),
    ):
        chosen.replace_backends({urls[0]: True})
        assert (await ask(session, url))[0] == 500
        chosen.replace_backends(dict.fromkeys(urls, True))
        stalled = asyncio.create_task(ask(session, url))
        while not made[1].asked:
            await asyncio.sleep(0.001)
        assert (await ask(session, url))[0] == 200 and len(made[0].asked) == 2
        stalled.cancel()
