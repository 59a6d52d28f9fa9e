"""Prefixes before engines in processes of their own: the router and the picker follow them as simulated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import grpc
import numpy as np
import pytest
from tests.gateway.rig import SETTINGS, Conductor, Mock, dispatcher, routing, start_mocks
from tests.gateway.test_picker import ENDPOINTS, URLS, Envoy, destination, picked

from kant.gateway.ask import read_ask
from kant.gateway.dispatch import Dispatcher
from kant.serving.fleet import simulate
from kant.serving.generate import arrivals
from kant.serving.requests import Requests
from kant.serving.routers import router_named

pytestmark = pytest.mark.service
CACHED = replace(SETTINGS, num_blocks=400, prefix_cache=True)
FLAGS = ("--blocks", "400", "--max-seqs", "8", "--max-tokens", "256")


@pytest.fixture(scope="module")
def mocks() -> Iterator[list[Mock]]:
    started = start_mocks(2, FLAGS)
    yield started
    for mock in started:
        mock.kill()


def prompts(requests: Requests) -> list[list[int]]:
    """Token ids that begin alike in each group, and differ after that."""
    return [
        [int(group)] * int(prefix) + [100 + i] * int(prompt - prefix)
        for i, (group, prefix, prompt) in enumerate(zip(requests.group, requests.prefix, requests.prompt, strict=True))
    ]


async def cached_tokens(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:prefix_cache_hits_total"))


def test_shared_prompts_go_where_they_are_simulated_to_go(mocks: list[Mock]) -> None:
    draw = np.random.Generator(np.random.PCG64(4))
    group, prefix = draw.integers(0, 4, 24), np.full(24, 640)
    requests = Requests(
        "shared", arrivals(draw, 24, 6.0), prefix + draw.integers(20, 200, 24), draw.integers(1, 40, 24),
        group=group, prefix=prefix,
    )  # fmt: skip
    urls = [mock.url for mock in mocks]

    async def play() -> tuple[list[int], int]:
        chosen = dispatcher(urls, router="prefix", settings=CACHED)
        async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            counts, where = [0, 0], []
            for i, prompt in enumerate(prompts(requests)):
                await conductor.advance(float(requests.arrival[i]))
                said = {"x-kant-predicted-tokens": str(int(requests.predicted[i]))}
                now = await conductor.send(prompt, int(requests.output[i]), headers=said)
                where.append(int(now[1] > counts[1]))
                counts = now
            await conductor.advance(1000.0)
            await asyncio.gather(*conductor.tasks)
            return where, sum([await cached_tokens(session, mock) for mock in urls])

    where, cached = asyncio.run(play())
    simulated = simulate(requests, CACHED, 2, router=router_named("prefix"), observed=True)
    assert where == simulated.engine.tolist()
    assert cached == simulated.hits > 24 * 640 / 2


def test_texts_that_begin_alike_go_to_one_engine_until_it_has_too_much_to_do(mocks: list[Mock]) -> None:
    urls = [mock.url for mock in mocks]
    text = "The contract says that " * 600

    async def play() -> list[int]:
        chosen = dispatcher(urls, router="prefix", settings=CACHED)
        async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            where: list[int] = []
            for k in range(40):
                body = json.dumps({"prompt": text + f"question {k}?", "max_tokens": 40, "stream": True})
                conductor.tasks.append(asyncio.create_task(_post(session, url, body)))
                while chosen.sent == k:
                    await asyncio.sleep(0.001)
                where.append(next(b.number for b in chosen.backends if any(p.order == k + 1 for p in b.rows.values())))
            for task in conductor.tasks:
                task.cancel()
            await asyncio.gather(*conductor.tasks, return_exceptions=True)
            return where

    where = asyncio.run(play())
    assert len(set(where[:3])) == 1  # it follows the prompt
    assert {*where} == {0, 1}  # but not into a queue that is longer than what it spares
    assert where.index(1 - where[0]) >= 3


async def _post(session: aiohttp.ClientSession, url: str, body: str) -> None:
    async with session.post(url + "/v1/completions", data=body) as answer:
        await answer.read()


def test_the_picker_follows_prefixes_too() -> None:
    def body(words: str, k: int) -> bytes:
        messages = [{"role": "system", "content": words * 200}, {"role": "user", "content": f"question {k}"}]
        return json.dumps({"messages": messages, "max_tokens": 5}).encode()

    async def play(channel: grpc.aio.Channel, chosen: Dispatcher) -> None:
        homes = {}
        for k in range(5):
            for words in ("contracts ", "recipes ", "proofs "):
                envoy = Envoy(channel)
                where = destination(await envoy.request(body(words, k), path="/v1/chat/completions"))[0]
                assert homes.setdefault(words, where) == where
                await envoy.respond(b'{"usage":{"completion_tokens":5}}', kind="application/json")
        assert set(homes.values()) <= set(ENDPOINTS)
        first = next(b for b in chosen.backends if b.host == homes["proofs "])
        first.site.beside(500, 10**6)  # somebody else keeps it busy
        assert (
            destination(await Envoy(channel).request(body("proofs ", 9), path="/v1/chat/completions"))[0] != first.host
        )

    picked(play, dispatcher(URLS, router="prefix", settings=CACHED))


def test_what_engines_keep_apart_is_kept_apart() -> None:
    def blocks(adapter: str = "", **more: object) -> list[int]:
        body = {"model": "m", "prompt": "x" * 1000, **more}
        return read_ask("/v1/completions", json.dumps(body).encode()).blocks(adapter, 4.0)[0]

    plain = blocks()
    assert len(plain) == 3 and blocks() == plain == blocks(max_tokens=3)
    for other in (blocks(cache_salt="a"), blocks(tools=[{"type": "function"}]), blocks("a")[1:]):
        assert len(other) == 3 and not set(other) & set(plain)
    assert blocks("a")[0] == blocks("a", prompt="short")[0] != blocks("b")[0]
    assert read_ask("/v1/completions", b'{"prompt":[[1,2],[3]]}').blocks("", 4.0) == ([], 64.0)


async def test_an_engine_that_is_lost_has_nothing_any_more() -> None:
    chosen = dispatcher(URLS, router="prefix", settings=CACHED)
    placed = chosen.come(read_ask("/v1/completions", json.dumps({"prompt": "x" * 4000}).encode()))
    assert chosen.offer(placed) and placed.backend is not None
    index = chosen.router.index  # type: ignore[attr-defined]
    assert index.size(placed.backend.number) == 15
    backend = placed.backend
    chosen.lost(backend)
    assert index.size(backend.number) == 0
