"""Mock engines in processes of their own, a router before them, and a conductor who sets the engines' clocks.

Time goes on only when the conductor says so, and he waits until the clients have seen every token that was sent. So
what the router knows when a request comes does not depend on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from tests.kube.processes import Forked
from tests.patience import PATIENCE_S, until

from kant.cli.app import run
from kant.gateway.backend import Limits
from kant.gateway.backends import Source
from kant.gateway.dispatch import Dispatcher
from kant.gateway.proxy import TIMEOUTS, ProxyOptions
from kant.gateway.record import Record
from kant.gateway.server import RouterServer, ServerOptions
from kant.gateway.spans import RequestSpans
from kant.gateway.tenants import Tenants, single_tenant
from kant.gateway.timeouts import Timeouts
from kant.serving.engine import EngineSettings
from kant.serving.latency import latency_model
from kant.serving.policies import policy_named
from kant.serving.requests import Requests
from kant.serving.routers import router_named

KANT = (sys.executable, "-m", "kant")
SETTINGS = EngineSettings(latency_model("llama-3-8b", "a100")[0], 60, 16, 8, 256, async_scheduling=True)
RUNNER = asyncio.Runner()
"""gRPC keeps the first event loop that it meets: all tests of the picker share this one."""

FLAGS = ("--blocks", "60", "--max-seqs", "8", "--max-tokens", "256", "--no-prefix-cache")


@dataclass
class Mock:
    """A mock engine that runs in a process of its own."""

    process: subprocess.Popen[str] | Forked
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if isinstance(self.process, subprocess.Popen) and self.process.stdout is not None:
            self.process.stdout.close()


def start(*verb: str) -> Mock:
    """A verb of `kant serve` that listens; it has said where."""
    process = subprocess.Popen([*KANT, "serve", *verb, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Mock(process, process.stdout.readline().split()[0])


def start_mocks(count: int, flags: Sequence[str] = FLAGS) -> list[Mock]:
    """So many conducted engines, forked from the tests: a new interpreter loads Kant for a second of CPU."""
    return [fork_mock(flags) for _ in range(count)]


def fork_mock(flags: Sequence[str]) -> Mock:
    reading, writing = os.pipe()
    command = ["serve", "mock", "--conducted", *flags, "--listen", "127.0.0.1:0"]
    process = Forked(partial(run, command), Path(f"/dev/fd/{writing}"))
    os.close(writing)
    with os.fdopen(reading) as said:
        return Mock(process, said.readline().split()[0])


def dispatcher(
    urls: Sequence[str],
    policy: str = "fcfs",
    router: str = "round-robin",
    settings: EngineSettings = SETTINGS,
    **limits: Any,
) -> Dispatcher:
    return Dispatcher(list(urls), settings, policy_named(policy), router_named(router), Limits(**limits))


@asynccontextmanager
async def routing(
    chosen: Dispatcher,
    tenants: Tenants | None = None,
    retries: int = 2,
    hold_s: float = PATIENCE_S,
    shares: int = 0,
    source: Source | None = None,
    timeouts: Timeouts = TIMEOUTS,
    record: Record | None = None,
    tls: tuple[Path, Path] | None = None,
    again: Callable[[], Tenants] | None = None,
    spans: RequestSpans | None = None,
) -> AsyncIterator[tuple[RouterServer, str]]:
    """A router that never looks at its backends by itself, and its address; with `shares` it shares that port."""
    listen = f"127.0.0.1:{shares}"
    options = ServerOptions(listen, "127.0.0.1:0", bool(shares), scrape_s=86400.0, drain_s=PATIENCE_S, tls=tls)
    proxied = ProxyOptions(retries, hold_s, timeouts)
    server = RouterServer(chosen, tenants or single_tenant(), proxied, options, source, record, again, spans)
    async with server:
        yield server, f"http://127.0.0.1:{server.port}"


@dataclass
class Client:
    """A client that streams: what it has seen so far."""

    tokens: int = 0
    status: int = 0
    backend: str = ""
    over: bool = False
    error: str = ""
    finished: bool = False
    text: list[bytes] = field(default_factory=list)


async def stream(
    session: aiohttp.ClientSession, url: str, prompt: int | list[int], output: int, client: Client, **more: object
) -> None:
    """Ask for so many tokens and count them as they come; the prompt is some token ids, or so many that are equal."""
    headers = more.pop("headers", None)
    tokens = [7] * prompt if isinstance(prompt, int) else prompt
    body = {"model": "llama-3-8b", "prompt": tokens, "max_tokens": output, "stream": True, **more}
    try:
        async with session.post(url + "/v1/completions", json=body, headers=headers) as answer:  # type: ignore[arg-type]
            client.status = answer.status
            client.backend = answer.headers.get("x-kant-backend", "")
            async for line in answer.content:
                client.text.append(line)
                if line.startswith(b'data: {"error"'):
                    client.error = line.decode()
                elif line.startswith(b"data: [DONE]"):
                    client.finished = True
                elif line.startswith(b"data: "):
                    client.tokens += 1
    finally:
        client.over = True


class Conductor:
    """Sends requests at their times, and lets the engines run in between."""

    def __init__(self, session: aiohttp.ClientSession, url: str, mocks: Sequence[str]) -> None:
        self.session, self.url, self.mocks = session, url, mocks
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def clock(self, mock: str, **until: object) -> dict[str, float]:
        call = self.session.post(mock + "/clock", json=until) if until else self.session.get(mock + "/clock")
        async with call as answer:
            return await answer.json()  # type: ignore[no-any-return]

    async def reset(self) -> None:
        for mock in self.mocks:
            await self.clock(mock, until=0.0, reset=True)

    async def advance(self, until: float) -> None:
        """Let all engines run until then, and wait until the clients have all that was said."""
        rows = [await self.clock(mock, until=until) for mock in self.mocks]
        said, live = sum(row["tokens"] for row in rows), sum(row["live"] for row in rows)
        await self.settle(
            lambda: (
                sum(client.tokens for client in self.clients) == said
                and sum(not client.over for client in self.clients) == live
            )
        )

    async def send(self, prompt: int | list[int], output: int, **more: object) -> list[int]:
        """Send a request; returns how many requests each engine has had, once one of them has it."""
        client = Client()
        self.clients.append(client)
        before = [int((await self.clock(mock))["requests"]) for mock in self.mocks]
        asked = stream(self.session, self.url, prompt, output, client, **more)
        self.tasks.append(asyncio.create_task(asked))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                counts = [int((await self.clock(mock))["requests"]) for mock in self.mocks]
                if counts != before or client.over:
                    return counts
                await asyncio.sleep(0.001)

    async def settle(self, true: Callable[[], object]) -> None:
        await until(true, 0.0005)

    async def play(self, requests: Requests) -> list[int]:
        """Send all requests at their arrivals, let the engines finish; returns the engine of each."""
        await self.reset()
        counts, where = [0] * len(self.mocks), []
        for i in range(len(requests)):
            await self.advance(float(requests.arrival[i]))
            headers = {"x-kant-predicted-tokens": str(int(requests.predicted[i]))}
            if requests.program[i] >= 0:
                headers["x-kant-program"] = str(int(requests.program[i]))
            now = await self.send(int(requests.prompt[i]), int(requests.output[i]), headers=headers)
            where.append(next(k for k, (a, b) in enumerate(zip(counts, now, strict=True)) if b > a))
            counts = now
        await self.advance(float(requests.arrival[-1]) + 1000.0)
        await asyncio.gather(*self.tasks)
        return where
