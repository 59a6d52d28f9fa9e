"""An open-loop load: requests leave when they are due, whether or not earlier ones have been answered.

`python -m benchmarks.routing_load` reads a line of `PORT RATE SECONDS TOKENS SEED` at a time and answers with a
line of JSON: milliseconds from each request to the first bytes of its answer and to its end, and how late the load
itself was. A request takes a connection that is idle, which is kept from line to line, or opens one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import numpy as np

from benchmarks.routing import body


class Call(asyncio.Protocol):
    """A connection, and the request that is on it."""

    def __init__(self, load: Load) -> None:
        self.load, self.tail, self.sent, self.first = load, b"", 0.0, 0.0
        self.chunked, self.left = False, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, request: bytes) -> None:
        self.tail, self.first, self.sent = b"", 0.0, time.perf_counter()
        self.chunked, self.left = False, 0
        self.transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.first:
            self.first = now
            if not data.startswith(b"HTTP/1.1 200"):
                self.load.refused += 1
        if not self.chunked and not self.left:
            self.tail += data
            head, found, data = self.tail.partition(b"\r\n\r\n")
            if not found:
                return
            said = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self.chunked, self.left, self.tail = not said, int(said or 0), b""
        if self.chunked:
            self.tail = (self.tail + data)[-7:]
            over = self.tail.endswith(b"\r\n0\r\n\r\n")
        else:
            self.left -= len(data)
            over = self.left <= 0
        if over:
            self.load.over(self, 1e3 * (self.first - self.sent), 1e3 * (now - self.sent))

    def connection_lost(self, error: Exception | None) -> None:
        if self in self.load.idle:
            self.load.idle.remove(self)
        elif self.sent and not self.load.done:
            self.load.refused += 1


class Load:
    """Requests to one port at a rate, for some seconds; arrivals are Poisson."""

    def __init__(self, port: int, rate: float, seconds: float, tokens: int, seed: int, idle: list[Call]) -> None:
        self.port, self.idle, self.done = port, idle, False
        draw = np.random.Generator(np.random.PCG64(seed))
        self.due = np.cumsum(draw.exponential(1 / rate, int(rate * seconds))).tolist()
        self.request = body(tokens)
        self.first: list[float] = []
        self.whole: list[float] = []
        self.late: list[float] = []
        self.refused = 0

    def over(self, call: Call, first: float, whole: float) -> None:
        self.first.append(first)
        self.whole.append(whole)
        self.idle.append(call)

    async def fresh(self) -> None:
        """Open a connection and ask on it."""
        loop = asyncio.get_running_loop()
        try:
            _, call = await loop.create_connection(lambda: Call(self), "127.0.0.1", self.port)
        except OSError:
            self.refused += 1
        else:
            call.ask(self.request)

    async def run(self) -> dict[str, object]:
        opening: set[asyncio.Task[None]] = set()
        began = time.perf_counter()
        for due in self.due:
            while (wait := began + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            self.late.append(-1e3 * wait)
            if self.idle:
                call = self.idle.pop()
                call.load = self
                call.ask(self.request)
            else:
                opening.add(task := asyncio.create_task(self.fresh()))
                task.add_done_callback(opening.discard)
        until = time.perf_counter() + 10
        while len(self.whole) + self.refused < len(self.due) and time.perf_counter() < until:
            await asyncio.sleep(0.01)
        self.done = True
        missing = len(self.due) - len(self.whole)
        return {"first": self.first, "whole": self.whole, "late": self.late, "failed": max(self.refused, missing)}


async def main() -> None:
    lines = asyncio.get_running_loop()
    kept: dict[str, list[Call]] = {}
    while line := await lines.run_in_executor(None, sys.stdin.readline):
        port, rate, seconds, tokens, seed = line.split()
        load = Load(int(port), float(rate), float(seconds), int(tokens), int(seed), kept.setdefault(port, []))
        print(json.dumps(await load.run()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
