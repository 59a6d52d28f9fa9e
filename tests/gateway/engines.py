"""Engines in this process that behave badly when they are asked, byte for byte as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

Behaviour = Callable[["FakeEngine", asyncio.StreamWriter, bytes], Awaitable[None]]

TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(status: int, body: bytes = b'{"usage":{"completion_tokens":3}}', length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, size, body)


class FakeEngine:
    """A server of HTTP/1.1 that keeps connections open; `asked` and `heads` are of the POSTs that came."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.asked: list[bytes] = []
        self.heads: list[bytes] = []
        self.closed = 0
        """Connections that the router has closed while a request was on them."""
        self.dead = False
        self.readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}

    async def open(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def die(self) -> None:
        """Close the port and all connections, as a process that is killed."""
        self.dead = True
        self.server.close()
        for writer in self.readers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers[writer] = reader
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                body = await reader.readexactly(int(size or 0))
                if head.startswith(b"POST"):
                    self.asked.append(body)
                    self.heads.append(head)
                    await self.behave(self, writer, body)
                else:
                    writer.write(answer(200, b'{"data":[]}'))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del self.readers[writer]
            writer.close()


async def well(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
    """Answer, after the others had their turn."""
    await asyncio.sleep(0.01)
    writer.write(answer(200))


def says(*parts: bytes, close: bool = False) -> Behaviour:
    """Say so much, and close the connection or wait until the router does."""

    async def behave(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if close:
            writer.close()

    return behave


def stalls(*parts: bytes) -> Behaviour:
    """Say so much, then nothing until the router has closed the connection."""

    async def behave(engine: FakeEngine, writer: asyncio.StreamWriter, body: bytes) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        try:
            await engine.readers[writer].read()
        finally:
            engine.closed += 1

    return behave


@asynccontextmanager
async def engines(*behaviours: Behaviour) -> AsyncIterator[tuple[list[FakeEngine], Sequence[str]]]:
    """Engines that run, and their addresses."""
    made = [FakeEngine(behave) for behave in behaviours]
    async with AsyncExitStack() as stack:
        urls = []
        for engine in made:
            urls.append(await engine.open())
            stack.callback(engine.die)
        yield made, urls
