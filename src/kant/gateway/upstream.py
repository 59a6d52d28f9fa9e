"""Connections to backends: HTTP/1.1, with each piece of a stream passed on as it arrives.

aiohttp's client wakes a task for each piece, and frames it again for the client. This module passes a piece on in the
callback of its socket, and whole chunks unchanged: half the CPU time per token.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

MOST_HEAD = 64 << 10
"""Maximum number of bytes of a response's head."""

IDLE_S = 30.0
"""Seconds for which an idle connection is kept."""

LINE = 4096
"""Maximum bytes of a chunk that is passed on only when complete, and of the first line of a chunk."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |\r\n|$)")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;[^\r\n]*)?\r\n")
_DIGITS = re.compile(r"[0-9]{1,15}")

Piece = Callable[[bytes, bytes | None], None]
"""A function that takes a piece of a body, and the same piece as whole HTTP/1.1 chunks (None: it did not arrive so)."""


class UpstreamError(Exception):
    """A backend closed the connection too early, or did not answer in HTTP."""


class UnreachableError(UpstreamError):
    """No connection could be opened."""


@dataclass(slots=True)
class Head:
    """The head of a response. `framed`: a length or chunks show where the response ends."""

    status: int
    headers: dict[str, str]
    framed: bool

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Connection(asyncio.Protocol):
    """One connection to a backend, with at most one request on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: list[Connection]) -> None:
        self.loop, self.idle = loop, idle
        self.since = 0.0
        self.closed = False
        self.kept = False
        """Whether the connection was used before: the backend may close it just as the next request arrives."""
        self.has_received = False
        """Whether a byte has arrived since the request was sent."""
        self._head: asyncio.Future[Head] | None = None
        self._whole: asyncio.Future[None] | None = None
        self._piece: Piece | None = None
        self._data = b""
        self._left = 0
        """The remaining bytes of the body or of the chunk; -1 if it ends with the connection."""
        self._chunked = self._keep = self._over = False
        self._broken = ""
        self._held = False

    # --- for requests -----------------------------------------------------------------------------------------------

    async def ask(self, head: bytes, body: bytes) -> Head:
        """Send a request and wait for the head of its response; raises UpstreamError if none arrives."""
        self._head, self._whole, self._piece = self.loop.create_future(), None, None
        self._chunked = self._keep = self._over = False
        self._data, self._left, self.has_received = b"", 0, False
        if len(body) < MOST_HEAD:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        return await self._head

    def pieces(self, take: Piece) -> asyncio.Future[None]:
        """Pass each piece of the body to `take` as it arrives. The future is done when the body is complete.

        It raises UpstreamError if the backend breaks off, and passes on exceptions of `take`.
        """
        self._piece = take
        whole = self._whole = self.loop.create_future()
        try:
            self._advance()
            if self.closed and not whole.done():
                self._ended()
            self.hold(False)
        except UpstreamError as error:
            self.fail(error)
        return whole

    def hold(self, held: bool) -> None:
        """Pause reading, or resume it."""
        if held != self._held and not self.closed and not self.transport.is_closing():
            self._held = held
            (self.transport.pause_reading if held else self.transport.resume_reading)()

    def fail(self, why: Exception) -> None:
        """Close the connection; callers that wait for it get the error."""
        self.closed = True
        self.transport.abort()
        for waiting in (self._head, self._whole):
            if waiting is not None and not waiting.done():
                waiting.set_exception(why)

    def release(self) -> None:
        """End the request: keep the connection for the next one if possible."""
        if self._over and self._keep and not self._data and not self.closed:
            self.hold(False)
            self.since, self.kept = self.loop.time(), True
            self._head = self._whole = self._piece = None
            self.idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self.closed, self._head = True, None
        self.transport.abort()

    # --- for the socket ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._head is None:
            if self in self.idle:
                self.idle.remove(self)
            return
        self._broken = type(error).__name__ if error else ""
        if self._whole is not None or not self._head.done():
            self._ended()

    def _ended(self) -> None:
        """Handle a closed connection. It ends a body without a length or chunks; in any other case it is an error."""
        if self._left < 0 and not self._broken and self._whole is not None:
            self._over = True
            if not self._whole.done():
                self._whole.set_result(None)
        else:
            self.fail(UpstreamError(self._broken or "it has closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._head is None:  # no request is in flight
            self.close()
            return
        self.has_received = True
        self._data = self._data + data if self._data else data
        try:
            if not self._head.done():
                self._read_head()
            elif self._piece is not None:
                self._advance()
            elif len(self._data) > MOST_HEAD:
                self.hold(True)
        except UpstreamError as error:
            self.fail(error)

    def _read_head(self) -> None:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > MOST_HEAD:
                    raise UpstreamError("its response headers are too long")
                return
            raw, self._data = self._data[:end], self._data[end + 4 :]
            head = self._parsed(raw)
            if head.status >= 200:
                break
        assert self._head is not None
        self._head.set_result(head)

    def _parsed(self, raw: bytes) -> Head:
        """Parse the head, with the framing of the body (RFC 9112, 6.3)."""
        matched = _STATUS.match(raw)
        if matched is None:
            raise UpstreamError("it does not speak HTTP/1.1")
        status = int(matched[2])
        headers: dict[str, str] = {}
        for line in raw.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line or b"\0" in line:
                raise UpstreamError("its response headers are not valid HTTP")
            key, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
            if key == "content-length" and headers.get(key, text) != text:
                raise UpstreamError("it sends two different Content-Length headers")
            headers[key] = text
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        framed = True
        if status in (204, 304):
            self._left = 0
        elif coding is not None:
            if coding.lower() != "chunked":
                raise UpstreamError("its transfer encoding is unknown")
            self._chunked, self._left = True, 0
        elif length is not None:
            if not _DIGITS.fullmatch(length):
                raise UpstreamError("its Content-Length is not a number")
            self._left = int(length)
        else:
            self._left, framed = -1, False
        said = headers.get("connection", "").lower()
        self._keep = framed and "close" not in said and (matched[1] == b"1" or "keep-alive" in said)
        return Head(status, headers, framed)

    def _advance(self) -> None:
        """Pass on the received part of the body."""
        assert self._piece is not None and self._whole is not None
        if self._whole.done():
            return
        try:
            if self._chunked:
                self._chunks(self._piece)
            else:
                self._plain(self._piece)
        except UpstreamError:
            raise
        except Exception as error:  # an error of `take`
            self.fail(error)
            return
        if self._over and not self._whole.done():
            self._whole.set_result(None)

    def _plain(self, take: Piece) -> None:
        """Process a body with a length, or one that ends with the connection."""
        data, self._data = self._data, b""
        if self._left >= 0:
            data, self._data = data[: self._left], data[self._left :]
            self._left -= len(data)
        if data:
            take(data, None)
        self._over = self._left == 0

    def _chunks(self, take: Piece) -> None:
        """Process a chunked body: whole chunks, and parts of long ones."""
        data, at, parts = self._data, 0, []
        as_it_came = self._left == 0
        while True:
            if self._left:  # within a chunk, including its line end
                as_it_came = False
                part = data[at : at + self._left - 2] if self._left > 2 else b""
                parts.append(part)
                at, self._left = at + len(part), self._left - len(part)
                if self._left > 2 or len(data) < at + 2:
                    break
                at = _line_end(data, at)
                self._left = 0
            matched = _SIZE.match(data, at)
            if matched is None:
                if len(data) - at > LINE:
                    raise UpstreamError("its chunk has no size")
                break
            size, begin = int(matched[1], 16), matched.end()
            if size == 0:
                end = data.find(b"\r\n\r\n", begin - 2)  # trailers are not passed on
                if end < 0 and len(data) - at > MOST_HEAD:
                    raise UpstreamError("its trailers are too long")
                if end >= 0:
                    self._over, self._data = True, data[end + 4 :]
                break
            if len(data) < begin + size + 2:
                if size <= LINE:
                    break  # the chunk will soon be complete
                at, self._left = begin, size + 2
                continue
            parts.append(data[begin : begin + size])
            as_it_came = as_it_came and matched[2] is None
            at = _line_end(data, begin + size)
        if not self._over:
            self._data = data[at:]
        payload = b"".join(parts) if len(parts) != 1 else parts[0]
        if payload:
            take(payload, data[:at] if as_it_came else None)


def _line_end(data: bytes, at: int) -> int:
    if data[at : at + 2] != b"\r\n":
        raise UpstreamError("its chunk has no end")
    return at + 2


class Upstreams:
    """The connections to all backends."""

    def __init__(self, connect_s: float) -> None:
        self.connect_s = connect_s
        self._idle: dict[str, list[Connection]] = {}
        self._secure: ssl.SSLContext | None = None

    async def connection(self, url: str, fresh: bool = False) -> Connection:
        """Return an idle connection to `http[s]://HOST[:PORT]`, or a new one; with `fresh`, always a new one.

        Raises UnreachableError if none can be opened.
        """
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(url, [])
        while idle and not fresh:
            kept = idle.pop()
            if not kept.closed and loop.time() - kept.since < IDLE_S:
                return kept
            kept.close()
        parts = urlsplit(url)
        secure = self._secure if parts.scheme == "https" else None
        if parts.scheme == "https" and secure is None:
            secure = self._secure = ssl.create_default_context()
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self.connect_s):
                _, made = await loop.create_connection(
                    lambda: Connection(loop, idle), parts.hostname or "", port, ssl=secure
                )
        except (OSError, TimeoutError) as error:
            raise UnreachableError(type(error).__name__) from None
        return made

    def close(self) -> None:
        """Close idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
