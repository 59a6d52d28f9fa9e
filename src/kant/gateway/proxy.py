"""The proxy: an OpenAI-compatible server that forwards each request to the backend that the dispatcher chooses.

Answers are streamed as they come. A client that goes away ends its request on the backend.

Requests to engines change nothing but caches, so to send one twice is safe for its client. It is not safe for engines:
the request may be what has broken the first. So a request of which a byte was sent to a backend is sent again only
where the backend has refused it (429, 503), or where the connection was closed before any byte of the answer and the
backend then answers `GET /health` on a new one: the failure was the connection's, and the backend lives. A request that
has killed its engine is answered 502, and so one request kills at most one engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from kant.gateway.ask import FORWARDS, Ask, EventCount, RefusedError, error_body, is_json, read_ask, usage_of
from kant.gateway.backend import Backend, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.meters import Meters
from kant.gateway.outliers import judged
from kant.gateway.retries import Retries, RetryBudget
from kant.gateway.tenants import Tenant, Tenants
from kant.gateway.timeouts import Stopwatch, TimedOutError, Timeouts
from kant.gateway.upstream import Connection, Head, UnreachableError, UpstreamError, Upstreams
from kant.model.errors import InputError

MOST_BODY = 32 << 20
MOST_ANSWER = 64 << 20
"""Bytes of an answer that is not streamed."""

CONNECT_S = 5.0
REFUSALS = frozenset({429, 503})
"""Statuses with which a backend says that it has not taken a request."""

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "content-length")
)  # fmt: skip
"""Headers that concern one connection (RFC 9110, 7.6.1)."""

NOT_SENT = HOP_BY_HOP | {"host", "accept-encoding", "expect", "content-encoding", "content-type"}
"""And of requests those that the proxy sets itself."""

BREAKS = frozenset("\r\n\0")
"""Would break a head apart; no server lets them in."""

PRESSURE = 256 << 10
"""Bytes that a client may be behind before its engine is read more slowly."""

PROGRAM = "x-kant-program"
PREDICTED = "x-kant-predicted-tokens"
BACKEND = "x-kant-backend"
TIMEOUTS = Timeouts()
JSON = {"Content-Type": "application/json"}


class BackendLostError(Exception):
    """A backend did not answer, or broke off: `status` is what the client hears of it."""

    def __init__(self, why: str, status: int = 502) -> None:
        super().__init__(why)
        self.status = status

    @property
    def kind(self) -> str:
        """OpenAI's type of the error."""
        return "timeout" if self.status == 504 else "backend_lost"


class ElsewhereError(BackendLostError):
    """A backend has not taken the request: it may be sent to another one."""


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """`retries` on other backends; seconds for which a request may be held; how long an engine may take.

    Requests that are retried are at most `retry_share` of all that there are at once.
    """

    retries: int = 2
    hold_s: float = 30.0
    timeouts: Timeouts = TIMEOUTS
    retry_share: float = 0.2


def origin(url: str) -> str:
    """The address of a backend, without a path; raises InputError where it is none."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path not in ("", "/", "/v1", "/v1/") or parts.query or parts.fragment or parts.username:
        raise InputError("--backends", "addresses such as http://127.0.0.1:8000", url)
    return f"{parts.scheme}://{parts.netloc}"


class Proxy:
    """The handler of all requests."""

    def __init__(self, dispatcher: Dispatcher, tenants: Tenants, options: ProxyOptions, meters: Meters) -> None:
        self.dispatcher, self.tenants, self.options, self.meters = dispatcher, tenants, options, meters
        self.draining = False
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.upstreams = Upstreams(CONNECT_S)
        self.budget = RetryBudget(options.retry_share)

    def close(self) -> None:
        self.upstreams.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever it is, the answer is one in OpenAI's form."""
        try:
            if request.method == "POST" and request.path in FORWARDS:
                return await self._forward(request)
            return self._other(request)
        except RefusedError as error:
            self.meters.refused.labels(str(error.status)).inc()
            return _refusal(error)
        except web.HTTPRequestEntityTooLarge:
            self.meters.refused.labels("413").inc()
            return _refusal(RefusedError(413, f"the body: expected at most {MOST_BODY} bytes", "invalid_request_error"))

    def _other(self, request: web.BaseRequest) -> web.Response:
        """What is not routed: health, metrics, the models of all backends."""
        if request.method not in ("GET", "HEAD"):
            known = ", ".join(FORWARDS)
            raise RefusedError(404, f"expected a POST to one of {known}", "invalid_request_error")
        if request.path == "/health":
            ready = not self.draining and any(backend.up for backend in self.dispatcher.backends)
            return web.Response(status=200 if ready else 503)
        key = request.headers.get("Authorization", "")
        if request.path == "/metrics":
            self.tenants.read_metrics(key)
            return self.metrics()
        if request.path == "/v1/models":
            self.tenants.of(key)
            names = sorted({name for b in self.dispatcher.backends if b.up for name in b.models or ()})
            rows = [{"id": name, "object": "model", "created": 0, "owned_by": "kant"} for name in names]
            return web.Response(body=msgspec.json.encode({"object": "list", "data": rows}), headers=JSON)
        raise RefusedError(404, "expected GET /v1/models, /health or /metrics", "invalid_request_error")

    def metrics(self) -> web.Response:
        """This router's own metrics, for Prometheus."""
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.meters.text(self.dispatcher), headers=kind)

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.monotonic()
        if self.draining:
            raise RefusedError(503, "this router stops", "overloaded", 1)
        tenant = self._tenant(request, began)
        self.in_flight += 1
        placed: Placement | None = None
        try:
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # curl waits for it with long bodies
            ask = read_ask(request.path, await request.read(), request.headers.get(PROGRAM, ""))
            tenant.rank(ask)
            self.dispatcher.now = began
            predicted = predicted_tokens(request.headers.get(PREDICTED)) if tenant.trusted else None
            placed = self.dispatcher.come(ask, predicted)
            return await self._serve(request, placed, began)
        except (asyncio.CancelledError, ConnectionError):
            self.meters.gone.inc()
            raise
        finally:
            if placed is not None:
                self.dispatcher.end(placed, None)
            tenant.give_back()
            self.in_flight -= 1
            if self.in_flight == 0:
                self.idle.set()

    def _tenant(self, request: web.BaseRequest, now: float) -> Tenant:
        tenant = self.tenants.of(request.headers.get("Authorization", ""))
        try:
            tenant.take(now)
        except RefusedError:
            self.meters.limited.labels(tenant.name).inc()
            raise
        return tenant

    async def _serve(self, request: web.BaseRequest, placed: Placement, began: float) -> web.StreamResponse:
        """Try backends until one takes the request."""
        retries = Retries(self.budget, self.options.retries)
        try:
            while True:
                await self._place(placed, began)
                backend = placed.backend
                assert backend is not None
                attempt = _Attempt(self, request, placed, began, retries)
                try:
                    return await attempt.run()
                except ElsewhereError as error:
                    if retries.left <= 0:
                        raise self._failed(backend, error) from None
                    retries.left -= 1
                except BackendLostError as error:
                    if attempt.response is None:
                        raise self._failed(backend, error) from None
                    self.meters.requests.labels(str(backend.number), str(error.status)).inc()
                    self.meters.lost.labels(str(backend.number)).inc()
                    return await attempt.say_lost(error)
                self.meters.retried.labels(str(backend.number)).inc()
                self.dispatcher.take_back(placed)
                placed.without |= {backend.number}
                if not self.others(placed):
                    placed.without = frozenset()  # whoever comes back first
                self.dispatcher.ask_again()
        finally:
            retries.close()

    def others(self, placed: Placement, *but: Backend) -> bool:
        """Whether a backend in service is left that a request has not had, `but` for these."""
        without = placed.without | {backend.number for backend in but}
        return any(not b.health.ejected for b in self.dispatcher.in_service(placed.ask.model, without))

    def _failed(self, backend: Backend, error: BackendLostError) -> RefusedError:
        """What the client hears of a request of whose answer nothing was sent to it."""
        self.meters.requests.labels(str(backend.number), str(error.status)).inc()
        if isinstance(error, ElsewhereError):
            return RefusedError(error.status, f"no backend has answered ({error})", error.kind, 1)
        said = f"backend {backend.number} has failed ({error}); what it had begun is not sent to another"
        return RefusedError(error.status, said, error.kind, 1)

    def answered(self, placed: Placement, good: bool) -> None:
        """A backend has answered well, or has failed."""
        self.dispatcher.now = time.monotonic()
        backend = placed.backend
        seconds = self.dispatcher.answered(placed, good)
        if seconds and backend is not None:
            self.meters.ejections.labels(str(backend.number)).inc()
            asyncio.get_running_loop().call_later(seconds, self._ask_again)

    def _ask_again(self) -> None:
        """A backend may be tested now: perhaps somebody waits for it."""
        self.dispatcher.now = time.monotonic()
        self.dispatcher.ask_again()

    async def _place(self, placed: Placement, began: float) -> None:
        """Wait until the request has a backend, but no longer than it may be held, or may take in all."""
        if self.dispatcher.offer(placed):
            return
        assert placed.placed is not None
        total_s = self.options.timeouts.total_s or math.inf
        gone = time.monotonic() - began
        try:
            async with asyncio.timeout(max(min(self.options.hold_s, total_s) - gone, 0)):
                await placed.placed
        except TimeoutError:
            if total_s <= self.options.hold_s:
                raise RefusedError(504, f"no backend has had room for {total_s:g} seconds", "timeout", 1) from None
            raise RefusedError(
                503, f"no backend has had room for {self.options.hold_s:g} seconds", "overloaded", 1
            ) from None
        self.meters.held_s.observe(time.monotonic() - began)


class _Attempt:
    """One request on one backend."""

    def __init__(
        self, proxy: Proxy, request: web.BaseRequest, placed: Placement, began: float, retries: Retries
    ) -> None:
        assert placed.backend is not None
        self.proxy, self.request, self.placed, self.began, self.retries = proxy, request, placed, began, retries
        self.backend = placed.backend
        self.response: web.StreamResponse | None = None
        self.count = EventCount()
        self.connection: Connection | None = None
        self.stopwatch: Stopwatch | None = None
        self.client: asyncio.Transport | None = None
        self.chunked = False
        self.relief: asyncio.Task[None] | None = None
        self.early: list[bytes] = []
        """Pieces that have come before the client's answer has begun."""
        self.begun: asyncio.Future[None] | None = None

    async def run(self) -> web.StreamResponse:
        """Forward, and hand the answer on; raises BackendLostError where the backend fails."""
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
        """Whether something of the answer's body has come."""
        return self.stopwatch is not None and self.stopwatch.begun

    async def _ask(self, head: bytes, body: bytes) -> tuple[Connection, Head]:
        """Send the request, and wait for the head of its answer."""
        upstreams, url = self.proxy.upstreams, self.backend.url
        try:
            connection = self.connection = await upstreams.connection(url)
        except UnreachableError as error:  # nothing was sent
            self.proxy.dispatcher.unreachable(self.backend)
            raise ElsewhereError(str(error)) from None
        self.placed.withdraw = lambda: connection.fail(UpstreamError("it was lost"))
        self.stopwatch = Stopwatch(self.proxy.options.timeouts, self.began, self._expired)
        try:
            return connection, await connection.ask(head, body)
        except TimedOutError:
            raise
        except UpstreamError as error:
            if connection.heard or not await self._lives():
                raise
            if not connection.kept:  # else it had been idle for too long
                self.proxy.answered(self.placed, False)
            if not self._may_retry():
                raise BackendLostError(str(error)) from None
            raise ElsewhereError(str(error)) from None

    async def _lives(self) -> bool:
        """Whether the backend answers on a new connection."""
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
        """The answer takes too long: end the connection, and so the request on the backend."""
        assert self.connection is not None
        if self.relief is not None and self.client is not None:  # it is the client who takes nothing
            self.client.abort()
            self.connection.fail(ClientGoneError("it reads nothing"))
        else:
            self.connection.fail(error)

    def _may_retry(self) -> bool:
        """Whether the request may be sent again: that uses up one retry, and some of the budget."""
        if self.retries.left <= 0:
            return False
        allowed = self.retries.take(self.proxy.in_flight)
        if not allowed:
            self.proxy.meters.over_budget.inc()
        return allowed

    def _head(self, path: str, length: int) -> bytes:
        """The head of the request as the engine gets it."""
        keyed = self.proxy.tenants.keyed
        lines = [
            f"POST {path} HTTP/1.1\r\nHost: {self.backend.host}\r\nContent-Type: application/json\r\n"
            f"Accept-Encoding: identity\r\nContent-Length: {length}"
        ]
        for name, value in self.request.headers.items():
            low = name.lower()
            if low in NOT_SENT or (keyed and low == "authorization") or not BREAKS.isdisjoint(value):
                continue
            lines.append(f"{name}: {value}")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")

    def _answer_headers(self, head: Head) -> dict[str, str]:
        kept = {name: value for name, value in head.headers.items() if name not in HOP_BY_HOP}
        kept[BACKEND] = str(self.backend.number)
        return kept

    async def _stream(self, connection: Connection, head: Head) -> None:
        """Hand each piece on as it comes; the client's answer begins with the first."""
        begun = self.begun = asyncio.get_running_loop().create_future()
        whole = connection.pieces(self._take)
        whole.add_done_callback(lambda _: self._begin())
        await begun
        if not self.early:
            await whole
            raise UpstreamError("its stream was empty")
        self.response = web.StreamResponse(status=head.status, headers=self._answer_headers(head))
        self.proxy.meters.first_s.observe(time.monotonic() - self.began)
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
            if not self.count.finished:  # else the client has all there is
                raise
        if not (head.framed or self.count.finished):  # nothing but [DONE] says that such a stream is whole
            raise UpstreamError("its stream has no end")
        said = self.count.events > 0 or self.count.finished
        self._over(head.status, self.count.events, self.count.usage, said)

    def _take(self, piece: bytes, chunks: bytes | None) -> None:
        """A piece of a stream has come: count its tokens, and write it to the client, in whose frame it may be."""
        assert self.stopwatch is not None
        self.stopwatch.heard()
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
        """The first piece has come, or none will."""
        if self.begun is not None and not self.begun.done():
            self.begun.set_result(None)

    async def _relieve(self) -> None:
        """The client is slower than the engine: read no more before it has what there is."""
        assert self.connection is not None
        self.connection.hold(True)
        try:
            await self.request.writer.drain()
        except ConnectionError:
            self.connection.fail(ClientGoneError("it has closed its connection"))
        self.connection.hold(False)
        self.relief = None

    async def _whole(self, connection: Connection, head: Head, ask: Ask) -> None:
        """An answer that is one JSON document: nothing is sent before all of it is here."""
        parts: list[bytes] = []
        size = 0

        def take(piece: bytes, _: bytes | None) -> None:
            nonlocal size
            assert self.stopwatch is not None
            self.stopwatch.heard()
            size += len(piece)
            if size > MOST_ANSWER:
                raise RefusedError(502, f"the answer is longer than {MOST_ANSWER} bytes", "backend_lost")
            parts.append(piece)

        await connection.pieces(take)
        body = b"".join(parts)
        plain = head.headers.get("content-encoding", "identity").lower() == "identity"
        if head.status == 200 and plain and not is_json(body):
            raise UpstreamError("its answer is no JSON")
        self.response = web.Response(body=body, status=head.status, headers=self._answer_headers(head))
        usage = usage_of(body) if head.status == 200 and ask.path.startswith("/v1/") else None
        self._over(head.status, usage[1] if usage else None, usage)
        self.proxy.meters.first_s.observe(time.monotonic() - self.began)
        await _to_client(self.response.prepare(self.request))

    def _over(self, status: int, output: int | None, usage: tuple[int, int] | None, said: bool = True) -> None:
        """The answer is whole, and says something: its place is free before the client knows."""
        good = judged(status)
        if good is not None:
            self.proxy.answered(self.placed, good and said)
        meters, placed, number = self.proxy.meters, self.placed, str(self.backend.number)
        meters.requests.labels(number, str(status)).inc()
        meters.whole_s.observe(time.monotonic() - self.began)
        meters.prompt.inc(usage[0] if usage else placed.prompt)
        if output:
            meters.tokens.labels(number).inc(output)
        self.proxy.dispatcher.end(placed, output if status == 200 else None, usage[0] if usage else None)

    async def say_lost(self, error: BackendLostError) -> web.StreamResponse:
        """Tell the client that the stream has lost its backend: an error in the stream, and no `[DONE]`."""
        assert self.response is not None
        tokens = self.count.events
        text = f"the backend was lost after {tokens} tokens ({error}); what has come is all there is"
        with contextlib.suppress(ConnectionError):
            await self.response.write(b"data: " + error_body(error.status, text, error.kind) + b"\n\n")
            await self.response.write_eof()
        return self.response


class ClientGoneError(ConnectionError):
    """The client has closed its connection."""


async def _to_client(sending: object) -> None:
    """Await something that is sent to the client; raises ClientGoneError where it has gone."""
    try:
        await sending  # type: ignore[misc]
    except ConnectionError as error:
        raise ClientGoneError(str(error)) from None


def _refusal(error: RefusedError) -> web.Response:
    headers = dict(JSON)
    if error.retry_after:
        headers["Retry-After"] = str(error.retry_after)
    return web.Response(body=error.body(), status=error.status, headers=headers)


def predicted_tokens(text: str | None) -> float | None:
    """Tokens as a header says; what is no such number is ignored."""
    if text is None or not text.isascii() or not text.replace(".", "", 1).isdigit() or len(text) > 12:
        return None
    return float(text)
