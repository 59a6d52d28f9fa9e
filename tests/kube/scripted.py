"""A server whose answers a test writes byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """Calls `answer(request, writer)` for each request; `seen` has them all, `accepted` counts connections."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.seen, self.accepted = answer, list[bytes](), 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"Content-Length:"), 0)
                self.seen.append(head + await reader.readexactly(length))
                await self.answer(self.seen[-1], writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def ok(body: bytes, code: int = 200, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {code} X\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body
