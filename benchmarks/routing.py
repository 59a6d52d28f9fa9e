"""What the router costs, beside the least that a proxy of aiohttp does: CPU time a request, and added milliseconds.

Answers of JSON, and streams of 16 tokens that come one by one. The engine behind costs nothing and answers at once. CPU
time is that of the proxy's process, from /proc; milliseconds are by the clock, at 50 requests a second, through the
router and past it in turns.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure

CLIENTS, JSON_REQUESTS, STREAMS = 32, 3000, 600
RATE, SAMPLES = 50.0, 500
TICKS = os.sysconf("SC_CLK_TCK")


def body(stream: bool) -> bytes:
    text = b'{"model":"m","prompt":"%s","max_tokens":16,"stream":%s}' % (b"x" * 400, b"true" if stream else b"false")
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


async def load(port: int, count: int, stream: bool) -> None:
    """So many requests of some clients, each the next when it has its answer."""
    left = iter(range(count))
    request = body(stream)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(request)
            await answer(reader)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def latencies(ports: list[int]) -> list[list[float]]:
    """Milliseconds of JSON answers at `RATE`, through each port in turns."""
    found: list[list[float]] = [[] for _ in ports]
    streams = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    request = body(False)
    for k in range(SAMPLES * len(ports)):
        reader, writer = streams[k % len(ports)]
        began = time.perf_counter()
        writer.write(request)
        await answer(reader)
        found[k % len(ports)].append(1e3 * (time.perf_counter() - began))
        await asyncio.sleep(1 / RATE)
    for _, writer in streams:
        writer.close()
    return found


def measure() -> Iterator[Figure]:
    engine, engine_port = started("benchmarks.routing_parts", "engine")
    url = f"http://127.0.0.1:{engine_port}"
    ours, port = started(
        "kant", "serve", "route", "--backends", url, "--listen", "127.0.0.1:0", "--router", "least-tokens"
    )
    rival, rival_port = started("benchmarks.routing_parts", "bare", url)
    try:
        for name, count, stream, bound in (
            ("route-json", JSON_REQUESTS, False, "aiohttp's reading and writing of heads"),
            ("route-stream", STREAMS, True, "one read and one write of aiohttp a token"),
        ):
            rates = []
            for process, at in ((ours, port), (rival, rival_port)):
                asyncio.run(load(at, 200, stream))  # warm
                before = cpu_of(process)
                asyncio.run(load(at, count, stream))
                rates.append(count / (cpu_of(process) - before))
            yield Figure(name, rates[0], "requests a CPU-s", rates[0] / rates[1], "bare aiohttp proxy", bound)
        through, bare, direct = asyncio.run(latencies([port, rival_port, engine_port]))
        base = float(np.quantile(direct, 0.99))
        for q, label in ((0.5, "p50"), (0.99, "p99")):
            base = float(np.quantile(direct, q))
            added = float(np.quantile(through, q)) - base
            beside = float(np.quantile(bare, q)) - base
            yield Figure(f"route-added-{label}", added, "ms", beside / added, "bare aiohttp proxy", "the machine")
    finally:
        for process in (ours, rival, engine):
            process.kill()
            process.wait()
