"""What the router costs, beside the least that a proxy of aiohttp does: CPU time a request, and added milliseconds.

Answers of JSON, and streams of 16 tokens that come one by one. The engine behind costs nothing and answers at once. CPU
time is that of the proxy's process, from /proc. Milliseconds are by the clock, through each proxy and past them all in
turns, under a load that is open: requests leave when they are due.

`python -m benchmarks.routing [--rate 1000] [--routers 2] [--tokens 16] [--pinned]` shows more: beside Envoy and nginx,
where they are installed, Envoy with `kant serve pick` beside it, and with several routers that share a port. With
--pinned (as root) the proxies have one core and load and engine another, before all other processes; of routers that
share a port the first has one, the others the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure
from benchmarks.routing_rivals import free_port, rivals

CLIENTS, JSON_REQUESTS, STREAMS = 32, 3000, 600
RATE, SECONDS, ROUNDS = 1000.0, 2.0, 4
TOKENS = 16
BARE = "bare aiohttp proxy"
TICKS = os.sysconf("SC_CLK_TCK")


def body(tokens: int) -> bytes:
    """A request for so many tokens one by one, or for JSON where that is 0."""
    said = b"true" if tokens else b"false"
    text = b'{"model":"m","prompt":"%s","max_tokens":%d,"stream":%s}' % (b"x" * 400, tokens or 16, said)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    return head.format(len(text)).encode() + text


def started(*command: str) -> tuple[subprocess.Popen[str], int]:
    """A process that has said where it listens."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline().split()[0]
    return process, int(said.rpartition(":")[2])


def cpu_of(process: subprocess.Popen[str]) -> float:
    """CPU-seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def answer(reader: asyncio.StreamReader) -> None:
    """Read one answer, whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    if b"chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
    else:
        length = head.split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))


async def closed(port: int, count: int, tokens: int) -> None:
    """So many requests of some clients, each the next when it has its answer."""
    left = iter(range(count))
    request = body(tokens)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(request)
            await answer(reader)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


@dataclass
class Proxied:
    """A proxy before the engine, and what was measured through it; without a process it is the engine itself."""

    name: str
    process: subprocess.Popen[str] | None
    port: int
    cpu_s: float = 0.0
    beside_s: float = 0.0
    """Of these CPU-seconds, those of the processes beside it."""
    requests: int = 0
    failed: int = 0
    beside: list[subprocess.Popen[str]] = field(default_factory=list)
    """Further processes that share its port."""
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def reset(self) -> None:
        self.cpu_s, self.beside_s, self.requests, self.failed = 0.0, 0.0, 0, 0
        self.first, self.whole, self.late = [], [], []

    def used_s(self) -> tuple[float, float]:
        """CPU-seconds of its processes so far, and of those beside it."""
        beside = sum(map(cpu_of, self.beside))
        return (cpu_of(self.process) if self.process else 0.0) + beside, beside

    def quantile(self, which: str, q: float) -> float:
        return float(np.quantile(getattr(self, which), q))


class OpenLoad:
    """The load in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.routing_load"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, to: Proxied, rate: float, seconds: float, tokens: int, seed: int) -> None:
        """Load one proxy for a while, and note what it took."""
        assert self.process.stdin is not None and self.process.stdout is not None
        before = to.used_s()
        self.process.stdin.write(f"{to.port} {rate} {seconds} {tokens} {seed}\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        for which, now, then in zip(("cpu_s", "beside_s"), to.used_s(), before, strict=True):
            setattr(to, which, getattr(to, which) + now - then)
        to.requests += len(found["whole"])
        to.failed += found["failed"]
        for which in ("first", "whole", "late"):
            getattr(to, which).extend(found[which])


def turns(proxies: list[Proxied], load: OpenLoad, rate: float, tokens: int) -> None:
    """Load each in turns, `ROUNDS` times, after a while in which nothing is counted."""
    for proxy in proxies:
        load.send(proxy, rate, 1.0, tokens, 0)
        proxy.reset()
    for k in range(ROUNDS):
        for j in range(len(proxies)):
            load.send(proxies[(j + k) % len(proxies)], rate, SECONDS, tokens, 1 + k)


@contextmanager
def proxies(with_rivals: bool, routers: int = 1) -> Iterator[tuple[OpenLoad, list[Proxied], subprocess.Popen[str]]]:
    """The load, the engine without a proxy, the router, and its rivals."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        engine, engine_port = started("benchmarks.routing_parts", "engine")
        stack.callback(_end, engine)
        url = f"http://127.0.0.1:{engine_port}"
        found = [Proxied("direct", None, engine_port)]
        route = ("kant", "serve", "route", "--backends", url, "--listen", "127.0.0.1:0", "--router", "least-tokens")
        for name, command in (("kant serve route", route), (BARE, ("benchmarks.routing_parts", "bare", url))):
            process, port = started(*command)
            stack.callback(_end, process)
            found.append(Proxied(name, process, port))
        if routers > 1:
            listen = f"127.0.0.1:{free_port()}"
            shared = [
                started(*route[:5], "--listen", listen, "--router", "least-tokens", "--share-port")[0]
                for _ in range(routers)
            ]
            for process in shared:
                stack.callback(_end, process)
            port = int(listen.rpartition(":")[2])
            found.append(Proxied(f"kant serve route x {routers}", shared[0], port, beside=shared[1:]))
        if with_rivals:
            pick = ("kant", "serve", "pick", "--backends", url, "--listen", "127.0.0.1:0", "--router", "least-tokens")
            picker, picker_port = started(*pick)
            stack.callback(_end, picker)
            for name, (process, port) in rivals(Path(folder), engine_port, picker_port).items():
                stack.callback(_end, process)
                found.append(Proxied(name, process, port, beside=[picker] if "pick" in name else []))
        load = OpenLoad()
        stack.callback(_end, load.process)
        yield load, found, engine


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def measure() -> Iterator[Figure]:
    with proxies(with_rivals=False) as (open_load, (direct, ours, bare), _):
        for name, count, tokens, bound in (
            ("route-json", JSON_REQUESTS, 0, "writing to sockets"),
            ("route-stream", STREAMS, TOKENS, "one read and one write of a socket a token"),
        ):
            rates = []
            for proxy in (ours, bare):
                assert proxy.process is not None
                asyncio.run(closed(proxy.port, 200, tokens))  # warm
                before = cpu_of(proxy.process)
                asyncio.run(closed(proxy.port, count, tokens))
                rates.append(count / (cpu_of(proxy.process) - before))
            yield Figure(name, rates[0], "requests a CPU-s", rates[0] / rates[1], BARE, bound)
        turns([direct, ours, bare], open_load, RATE, 0)
        assert ours.failed == 0, f"{ours.failed} requests were not answered"
        for q, label in ((0.5, "p50"), (0.99, "p99")):
            base = direct.quantile("whole", q)
            added, beside = ours.quantile("whole", q) - base, bare.quantile("whole", q) - base
            yield Figure(f"route-added-{label}", added, "ms", beside / added, BARE, "the machine")


def pin(process: subprocess.Popen[str], core: int) -> None:
    """Give all threads of a process one core, before everybody else there."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
        os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))


def table(rate: float, pinned: bool, routers: int, streamed: int) -> Iterator[str]:
    """Every proxy at a rate, in rows of a page."""
    with proxies(True, routers) as (open_load, found, engine):
        if pinned:
            apart = [(p.process, 1) for p in found if p.process] + [(p, 0) for row in found for p in row.beside]
            for process, core in ((engine, 0), (open_load.process, 0), *apart):
                pin(process, core)
        yield "| answers | through | CPU, µs a request | beside | P50, ms | P99, ms | added P50 | added P99 | failed |"
        yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
        for tokens in (0, streamed):
            turns(found, open_load, rate, tokens)
            direct = found[0]
            for proxy in found:
                row = [proxy.quantile("first", q) for q in (0.5, 0.99)]
                base = [direct.quantile("first", q) for q in (0.5, 0.99)]
                cpu = f"{1e6 * proxy.cpu_s / proxy.requests:,.0f}" if proxy.process else "-"
                beside = f"{1e6 * proxy.beside_s / proxy.requests:,.0f}" if proxy.beside else "-"
                added = [f"{a - b:.2f}" if proxy.process else "-" for a, b in zip(row, base, strict=True)]
                yield (
                    f"| {'streams' if tokens else 'JSON'} | {proxy.name} | {cpu} | {beside}"
                    f" | {row[0]:.2f} | {row[1]:.2f} | {added[0]} | {added[1]} | {proxy.failed} |"
                )
        late = max(proxy.quantile("late", 0.99) for proxy in found)
        yield f"\nThe load was late by {late:.1f} ms in P99; the machine's load was {os.getloadavg()[0]:.1f}."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--routers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--pinned", action="store_true")
    options = parser.parse_args()
    for line in table(options.rate, options.pinned, options.routers, options.tokens):
        print(line, flush=True)


if __name__ == "__main__":
    main()
