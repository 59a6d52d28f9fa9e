"""Sends one request to one backend, and passes the response on to the client.

Requests to engines change only caches, so sending a request twice does no harm to its client. It may harm engines,
since the request may have crashed the first one. So once a byte was sent to a backend, the request is sent again only
in two cases: the backend refused it (429, 503); or the connection closed before any byte of the response, and the
backend answers `GET /health` on a new connection, so only the connection failed. A request that crashed its engine gets
a 502. So one request crashes at most one engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from aiohttp import web

from kant.gateway.ask import Ask, RefusedError, count_for, error_body, is_json, usage_of
from kant.gateway.backend import Placement
from kant.gateway.outliers import judged
from kant.gateway.retries import Retries
from kant.gateway.spans import TRACEPARENT
from kant.gateway.timeouts import Stopwatch, TimedOutError
from kant.gateway.upstream import Connection, Head, UnreachableError, UpstreamError

if TYPE_CHECKING:
    from kant.gateway.proxy import Proxy
    from kant.gateway.record import RequestRecord

MOST_ANSWER = 64 << 20
"""The most bytes of a response that is not streamed."""

REFUSALS = frozenset({429, 503})
"""Statuses by which a backend says that it has not accepted a request."""

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "content-length")
)  # fmt: skip
"""Headers that concern only a single connection (RFC 9110, 7.6.1)."""

REQUEST_ID = "x-request-id"
NOT_SENT = HOP_BY_HOP | {"host", "accept-encoding", "expect", "content-encoding", "content-type", REQUEST_ID}
"""Request headers that are not forwarded: hop-by-hop headers, and headers that the proxy sets itself."""

BREAKS = frozenset("\r\n\0")
"""Characters that would end a header. No server accepts them in a value."""

PRESSURE = 256 << 10
"""The maximum number of unsent bytes for a client. Beyond it, reading from the client's engine is paused."""

BACKEND = "x-kant-backend"
CONNECT_S = 5.0


class BackendLostError(Exception):
    """A backend did not respond, or broke off its response. `status` is the status for the client."""

    def __init__(self, why: str, status: int = 502) -> None:
        super().__init__(why)
        self.status = status

    @property
    def kind(self) -> str:
        """The error type in OpenAI's API."""
        return "timeout" if self.status == 504 else "backend_lost"


class ElsewhereError(BackendLostError):
    """A backend did not accept the request, so it may be sent to another backend."""


class Attempt:
    """One attempt to serve a request on one backend."""

    def __init__(
        self, proxy: Proxy, request: web.BaseRequest, placed: Placement, entry: RequestRecord, retries: Retries
    ) -> None:
        assert placed.backend is not None
        self.proxy, self.request, self.placed, self.entry, self.retries = proxy, request, placed, entry, retries
        self.began = entry.began
        self.backend = placed.backend
        self.response: web.StreamResponse | None = None
        self.count = count_for(placed.ask.path)
        self.connection: Connection | None = None
        self.stopwatch: Stopwatch | None = None
        self.client: asyncio.Transport | None = None
        self.chunked = False
        self.relief: asyncio.Task[None] | None = None
        self.early: list[bytes] = []
        """Pieces received before the client's response has started."""
        self.begun: asyncio.Future[None] | None = None

    async def run(self) -> web.StreamResponse:
        """Forward the request, and pass the response on; raises BackendLostError if the backend fails."""
        ask, dispatcher = self.placed.ask, self.proxy.dispatcher
        priority = dispatcher.sent_priority(self.placed) if ask.path != "/tokenize" else None
        body = ask.forwarded(priority, dispatcher.policy.by_priority)
        try:
            connection, head = await self._ask(self._head(ask.path, len(body)), body)
            if head.status in REFUSALS and self.proxy.others(self.placed, self.backend) and self._may_retry():
                if head.status == 503:
                    self.proxy.answered(self.placed, False)
                raise ElsewhereError(f"it answered {head.status}")
            if head.content_type == "text/event-stream":
                await self._stream(connection, head)
            else:
                await self._whole(connection, head, ask)
        except TimedOutError as error:
            self.proxy.meters.timed_out.labels(str(self.backend.number), str(self.stopwatch_begun).lower()).inc()
            if error.stalled:
                self.proxy.answered(self.placed, False)
            raise BackendLostError(str(error), 504) from None
        except UpstreamError as error:
            self.proxy.answered(self.placed, False)
            raise BackendLostError(str(error)) from None
        finally:
            self.placed.withdraw = None
            self.entry.output = self.entry.output or self.count.events
            if self.stopwatch is not None:
                self.stopwatch.stop()
            if self.connection is not None:
                self.connection.release()
        assert self.response is not None
        with contextlib.suppress(ConnectionError):
            await self.response.write_eof()
        return self.response

    @property
    def stopwatch_begun(self) -> bool:
        """Whether any of the response body has arrived."""
        return self.stopwatch is not None and self.stopwatch.begun

    async def _ask(self, head: bytes, body: bytes) -> tuple[Connection, Head]:
        """Send the request, and wait for the head of the response."""
        upstreams, url = self.proxy.upstreams, self.backend.url
        try:
            connection = self.connection = await upstreams.connection(url)
        except UnreachableError as error:  # nothing was sent
            self.proxy.dispatcher.unreachable(self.backend)
            raise ElsewhereError(str(error)) from None
        self.placed.withdraw = lambda: connection.fail(UpstreamError("it no longer responds"))
        self.stopwatch = Stopwatch(self.proxy.options.timeouts, self.began, self._expired)
        try:
            return connection, await connection.ask(head, body)
        except TimedOutError:
            raise
        except UpstreamError as error:
            if connection.has_received or not await self._lives():
                raise
            if not connection.kept:  # a reused connection may have been closed for idling
                self.proxy.answered(self.placed, False)
            if not self._may_retry():
                raise BackendLostError(str(error)) from None
            raise ElsewhereError(str(error)) from None

    async def _lives(self) -> bool:
        """Whether the backend responds on a new connection."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self.proxy.upstreams.connection(self.backend.url, fresh=True)
                head = await connection.ask(f"GET /health HTTP/1.1\r\nHost: {self.backend.host}\r\n\r\n".encode(), b"")
            return head.status < 500
        except UnreachableError:
            self.proxy.dispatcher.unreachable(self.backend)
            return False
        except (UpstreamError, TimeoutError):
            return False
        finally:
            if connection is not None:
                connection.close()

    def _expired(self, error: TimedOutError) -> None:
        """Close the connection if the response takes too long. This ends the request on the backend."""
        assert self.connection is not None
        if self.relief is not None and self.client is not None:  # reading was paused because the client does not read
            self.client.abort()
            self.connection.fail(ClientGoneError("it reads nothing"))
        else:
            self.connection.fail(error)

    def _may_retry(self) -> bool:
        """Whether the request may be retried. If so, a part of the retry budget is used up."""
        if self.retries.left <= 0:
            return False
        allowed = self.retries.take(self.proxy.in_flight)
        if not allowed:
            self.proxy.meters.over_budget.inc()
        return allowed

    def _head(self, path: str, length: int) -> bytes:
        """Return the head of the request for the engine."""
        keyed = self.proxy.tenants.keyed
        lines = [
            f"POST {path} HTTP/1.1\r\nHost: {self.backend.host}\r\nContent-Type: application/json\r\n"
            f"Accept-Encoding: identity\r\nContent-Length: {length}\r\n{REQUEST_ID}: {self.entry.id}"
        ]
        span = self.entry.span
        if span is not None:
            lines.append(f"{TRACEPARENT}: {span.traceparent}")
        for name, value in self.request.headers.items():
            low = name.lower()
            if span is not None and low == TRACEPARENT:
                continue
            if low in NOT_SENT or (keyed and low == "authorization") or not BREAKS.isdisjoint(value):
                continue
            lines.append(f"{name}: {value}")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")

    def _answer_headers(self, head: Head) -> dict[str, str]:
        kept = {name: value for name, value in head.headers.items() if name not in HOP_BY_HOP}
        kept[BACKEND], kept[REQUEST_ID] = str(self.backend.number), self.entry.id
        return kept

    async def _stream(self, connection: Connection, head: Head) -> None:
        """Pass each piece of a stream on as it arrives. The response to the client starts with the first piece."""
        begun = self.begun = asyncio.get_running_loop().create_future()
        whole = connection.pieces(self._take)
        whole.add_done_callback(lambda _: self._begin())
        await begun
        if not self.early:
            await whole
            raise UpstreamError("its stream was empty")
        self.response = web.StreamResponse(status=head.status, headers=self._answer_headers(head))
        self._first()
        await _to_client(self.response.prepare(self.request))
        while self.early:
            pieces, self.early = b"".join(self.early), []
            await _to_client(self.response.write(pieces))
        self.chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
        self.client = self.request.transport
        if self.client is None:
            raise ClientGoneError("it has closed its connection")
        try:
            await whole
        except TimedOutError:
            if not self.count.finished:  # the client has got all of a finished stream
                raise
        if not (head.framed or self.count.finished):  # without framing, only [DONE] shows the end
            raise UpstreamError("its stream has no end")
        said = self.count.events > 0 or self.count.finished
        self._over(head.status, self.count.events, self.count.usage, said)

    def _take(self, piece: bytes, chunks: bytes | None) -> None:
        """Process a piece of a stream: count its tokens, and write it to the client, unchanged if `chunks` is given."""
        assert self.stopwatch is not None
        self.stopwatch.piece_arrived()
        done = self.count.feed(piece)
        if done:
            self.proxy.dispatcher.said(self.placed, done)
        client = self.client
        if client is None:
            self.early.append(piece)
            self._begin()
            return
        if client.is_closing():
            raise ClientGoneError("it has closed its connection")
        if self.chunked:
            client.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunks is None else chunks)
        else:
            client.write(piece)
        if client.get_write_buffer_size() > PRESSURE and self.relief is None:
            self.relief = asyncio.create_task(self._relieve())

    def _begin(self) -> None:
        """Record that the first piece has arrived, or that none will."""
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(None)

    async def _relieve(self) -> None:
        """Pause reading from the engine until the client, which is slower, has caught up."""
        assert self.connection is not None
        self.connection.hold(True)
        try:
            await self.request.writer.drain()
        except ConnectionError:
            self.connection.fail(ClientGoneError("it has closed its connection"))
        self.connection.hold(False)
        self.relief = None

    async def _whole(self, connection: Connection, head: Head, ask: Ask) -> None:
        """Pass on a response that is one JSON document, after all of it has arrived."""
        parts: list[bytes] = []
        size = 0

        def take(piece: bytes, _: bytes | None) -> None:
            nonlocal size
            assert self.stopwatch is not None
            self.stopwatch.piece_arrived()
            size += len(piece)
            if size > MOST_ANSWER:
                raise RefusedError(502, f"the answer is longer than {MOST_ANSWER} bytes", "backend_lost")
            parts.append(piece)

        await connection.pieces(take)
        body = b"".join(parts)
        plain = head.headers.get("content-encoding", "identity").lower() == "identity"
        if head.status == 200 and plain and not is_json(body):
            raise UpstreamError("its answer is not JSON")
        self.response = web.Response(body=body, status=head.status, headers=self._answer_headers(head))
        usage = usage_of(body) if head.status == 200 and ask.path.startswith("/v1/") else None
        self._over(head.status, usage[1] if usage else None, usage)
        self._first()
        await _to_client(self.response.prepare(self.request))

    def _first(self) -> None:
        """Record the time of the response's first piece."""
        self.entry.first_s = time.monotonic() - self.began
        self.proxy.meters.first_s.observe(self.entry.first_s)
        if self.entry.span is not None:
            self.entry.span.note("first token")

    def _over(self, status: int, output: int | None, usage: tuple[int, int] | None, said: bool = True) -> None:
        """Finish a complete response. Its capacity on the backend is freed before the client gets the last byte."""
        good = judged(status)
        if good is not None:
            self.proxy.answered(self.placed, good and said)
        meters, placed, number = self.proxy.meters, self.placed, str(self.backend.number)
        self.entry.status, self.entry.prompt, self.entry.output = status, usage[0] if usage else 0, output or 0
        meters.requests.labels(number, str(status)).inc()
        meters.whole_s.observe(time.monotonic() - self.began)
        meters.prompt.inc(usage[0] if usage else placed.prompt)
        if output:
            meters.tokens.labels(number).inc(output)
        if status == 200:
            self.proxy.used(placed, usage[0] if usage else placed.prompt, output or 0)
        self.proxy.dispatcher.end(placed, output if status == 200 else None, usage[0] if usage else None)

    async def send_lost_error(self, error: BackendLostError) -> web.StreamResponse:
        """Tell the client of a stream that the backend was lost: write an error event, and no `[DONE]`."""
        assert self.response is not None
        tokens = self.entry.output = self.count.events
        self.entry.status = error.status
        text = f"the backend was lost after {tokens} tokens ({error}); the response ends here, incomplete"
        with contextlib.suppress(ConnectionError):
            await self.response.write(self.count.error(error_body(error.status, text, error.kind, self.entry.path)))
            await self.response.write_eof()
        return self.response


class ClientGoneError(ConnectionError):
    """The client has closed its connection."""


async def _to_client(sending: object) -> None:
    """Await a write to the client; raises ClientGoneError if it has disconnected."""
    try:
        await sending  # type: ignore[misc]
    except ConnectionError as error:
        raise ClientGoneError(str(error)) from None
