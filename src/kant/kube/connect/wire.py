"""HTTP/1.1 with kept-alive connections, limited to what bindings need: a third of the CPU time of a general client.

The guard of a request is called once there is a connection, right before the write, with no wait between them.

Source: RFC 9112, sections 6 and 7 (framing of bodies, chunks), 9.3 (persistence), 9.3.1 (what may be sent twice).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

KEEP = 60.0  # seconds after which an idle connection is discarded
HEAD_END = b"\r\n\r\n"


class Response(NamedTuple):
    """A whole response. `code`: the HTTP status; `retry_after`: the header verbatim, None if absent."""

    code: int
    body: bytes
    retry_after: str | None


class GuardRefusedError(Exception):
    """The guard refused the request; nothing was written."""


class UnreachableError(OSError):
    """No connection could be made; the cause says why. Nothing was sent."""


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self) -> None:
        self.alive = False
        self.idle_since = 0.0
        self.began = False  # whether any byte of the response has arrived
        self._buffer = bytearray()
        self._answer: asyncio.Future[Response] | None = None
        self._reset()

    def _reset(self) -> None:
        self._code = 0
        self._retry_after: str | None = None
        self._length: int | None = None  # bytes of the body; None: chunked, or all until the connection ends
        self._chunked = self._last = False
        self._parts: list[bytes] = []

    def send(self, request: bytes) -> asyncio.Future[Response]:
        self._answer = _loop().create_future()
        self.began = False
        self._transport.write(request)
        return self._answer

    def abort(self) -> None:
        self.alive = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.alive = True

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if self._code and self._length is None and not self._chunked and error is None:
            answer.set_result(Response(self._code, bytes(self._buffer), self._retry_after))
        else:
            answer.set_exception(error or ConnectionResetError("closed before the end of the answer"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.began = True
        if self._answer is None:  # data although no request is in flight
            self.abort()
            return
        try:
            whole = (self._code or self._head()) and self._body()
        except ValueError:
            answer, self._answer = self._answer, None
            if not answer.done():
                answer.set_exception(ConnectionError("an answer that is not HTTP/1.1"))
            self.abort()
            return
        if whole:
            answer, self._answer = self._answer, None
            if not answer.done():
                answer.set_result(Response(self._code, b"".join(self._parts), self._retry_after))
            self.alive = self.alive and not self._last and not self._buffer
            self._reset()

    def _head(self) -> bool:
        """Parse and consume the head, once it is complete. Interim responses (1xx) are skipped."""
        while (end := self._buffer.find(HEAD_END)) >= 0:
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            if not lines[0].startswith(b"HTTP/1."):
                raise ValueError(lines[0])
            code = int(lines[0][9:12])
            if code < 200:
                continue
            self._code = code
            self._last = lines[0].startswith(b"HTTP/1.0")
            for line in lines[1:]:
                name, _, value = line.partition(b":")
                match name.lower():
                    case b"content-length":
                        self._length = int(value)
                    case b"transfer-encoding":
                        self._chunked = b"chunked" in value.lower()
                    case b"connection":
                        self._last = self._last or b"close" in value.lower()
                    case b"retry-after":
                        self._retry_after = value.strip().decode("latin-1")
            if self._chunked or code in (204, 304):
                self._length = None if self._chunked else 0
            return True
        return False

    def _body(self) -> bool:
        """Consume the received part of the body. Returns whether it is complete."""
        if self._chunked:
            return self._chunks()
        if self._length is None or len(self._buffer) < self._length:
            return False
        self._parts.append(bytes(self._buffer[: self._length]))
        del self._buffer[: self._length]
        return True

    def _chunks(self) -> bool:
        at, buffer, whole = 0, self._buffer, False
        while (line := buffer.find(b"\r\n", at)) >= 0:
            size = int(bytes(buffer[at:line]).partition(b";")[0], 16)
            end = line + 2 + size
            if size == 0:  # trailers, which are skipped, then an empty line
                finish = line if buffer[line : line + 4] == HEAD_END else buffer.find(HEAD_END, line)
                whole = finish >= 0
                at = finish + 4 if whole else at
                break
            if len(buffer) < end + 2:
                break
            self._parts.append(bytes(buffer[line + 2 : end]))
            at = end + 2
        del buffer[:at]
        return whole


class Pool:
    """At most `size` connections to one server. The connection used last is reused first, so that few stay open."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, name: str | None, size: int) -> None:
        self._address = (host, port)
        self._context = context
        self._name = name
        self._places = asyncio.Semaphore(size)
        self._idle: list[Connection] = []

    async def request(self, request: bytes, *, again: bool, guard: Callable[[], bool] | None = None) -> Response:
        """Send bytes and return the response. `again`: send them again if the server had closed an idle connection."""
        async with self._places:
            while True:
                kept = self._kept()
                connection = kept or await self._open()
                if guard is not None and not guard():
                    self._keep(connection)
                    raise GuardRefusedError
                try:
                    answer = await connection.send(request)
                except ConnectionError:
                    if kept and again and not connection.began:
                        continue
                    raise
                except BaseException:  # cancelled: a late response must not reach the next request
                    connection.abort()
                    raise
                self._keep(connection)
                return answer

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and _loop().time() - connection.idle_since < KEEP:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection) -> None:
        if connection.alive:
            connection.idle_since = _loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _open(self) -> Connection:
        name = (self._name or self._address[0]) if self._context else None
        try:
            _, connection = await _loop().create_connection(
                Connection, *self._address, ssl=self._context, server_hostname=name
            )
        except OSError as error:
            raise UnreachableError from error
        made = connection._transport.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
