"""The proxy: an OpenAI-compatible server that forwards each request to the backend that the dispatcher chooses.

Responses are streamed as they arrive. A client that disconnects ends its request on the backend.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from kant.gateway.ask import FORWARDS, RefusedError, read_ask
from kant.gateway.attempt import CONNECT_S, REQUEST_ID, Attempt, BackendLostError, ElsewhereError
from kant.gateway.backend import Backend, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.meters import Meters
from kant.gateway.record import Record, RequestRecord
from kant.gateway.retries import Retries, RetryBudget
from kant.gateway.spans import LONGEST_NAME, TRACEPARENT, RequestSpans
from kant.gateway.tenants import Tenant, Tenants
from kant.gateway.timeouts import Timeouts
from kant.gateway.upstream import Upstreams
from kant.live.otlp import Value
from kant.model.errors import InputError

MOST_BODY = 32 << 20
PROGRAM = "x-kant-program"
PREDICTED = "x-kant-predicted-tokens"
DEADLINE = "x-kant-deadline-s"
"""The header with the number of seconds within which a client wants its first token. After that the client no longer
wants the response.
"""

TIMEOUTS = Timeouts()
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Options. `retries` is the number of other backends tried; `hold_s`, how long (s) a request may be held.

    At most the fraction `retry_share` of all requests in flight may be retries.
    """

    retries: int = 2
    hold_s: float = 30.0
    timeouts: Timeouts = TIMEOUTS
    retry_share: float = 0.2


def origin(url: str) -> str:
    """Return the address of a backend without a path; raises InputError if it is invalid."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path not in ("", "/", "/v1", "/v1/") or parts.query or parts.fragment or parts.username:
        raise InputError("--backends", "addresses such as http://127.0.0.1:8000", url)
    return f"{parts.scheme}://{parts.netloc}"


class Proxy:
    """The HTTP handlers of the proxy."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tenants: Tenants,
        options: ProxyOptions,
        meters: Meters,
        record: Record | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        self.dispatcher, self.tenants, self.options, self.meters = dispatcher, tenants, options, meters
        self.record, self.spans = record, spans
        self.draining = False
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.upstreams = Upstreams(CONNECT_S)
        self.budget = RetryBudget(options.retry_share)

    def close(self) -> None:
        self.upstreams.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request. Every response has the form of the request's API."""
        entry = RequestRecord(request_id(request.headers.get(REQUEST_ID, "")), request.path, time.monotonic())
        routed = request.method == "POST" and request.path in FORWARDS
        if routed:
            self.meters.arrivals.inc()
            if self.spans is not None:
                entry.span = self.spans.begin(request.headers.get(TRACEPARENT, ""), "POST", entry.path, entry.began)
        try:
            return await self._forward(request, entry) if routed else self._other(request)
        except RefusedError as error:
            return self._refused(entry, error)
        except web.HTTPRequestEntityTooLarge:
            said = f"the body: expected at most {MOST_BODY} bytes"
            return self._refused(entry, RefusedError(413, said, "invalid_request_error"))
        finally:
            if routed and self.record is not None:
                self.record.write(entry, self.dispatcher.bytes_per_token)
            if self.spans is not None and entry.span is not None:
                facts: dict[str, Value] = {"kant.request.id": entry.id, "kant.attempts": entry.attempts}
                if entry.prompt:  # the engine has reported it
                    facts["gen_ai.usage.input_tokens"] = entry.prompt
                facts["gen_ai.usage.output_tokens"] = entry.output
                self.spans.end(entry.span, entry.status, entry.placed, **facts)

    def _refused(self, entry: RequestRecord, error: RefusedError) -> web.Response:
        entry.status = error.status
        self.meters.refused.labels(str(error.status)).inc()
        headers = {**JSON, REQUEST_ID: entry.id}
        if error.retry_after:
            headers["Retry-After"] = str(error.retry_after)
        return web.Response(body=error.body(entry.path), status=error.status, headers=headers)

    def _other(self, request: web.BaseRequest) -> web.Response:
        """Handle requests that are not routed: health, metrics, the models of all backends."""
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
        """Return this router's own metrics for Prometheus."""
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.meters.text(self.dispatcher), headers=kind)

    async def _forward(self, request: web.BaseRequest, entry: RequestRecord) -> web.StreamResponse:
        began = entry.began
        if self.draining:
            raise RefusedError(503, "this router is stopping", "overloaded", 1)
        tenant = self._tenant(request, began)
        entry.tenant = tenant.name
        self.in_flight += 1
        placed: Placement | None = None
        try:
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # curl waits for this before a long body
            ask = read_ask(request.path, await request.read(), request.headers.get(PROGRAM, ""))
            tenant.rank(ask)
            self.dispatcher.now = began
            predicted = predicted_tokens(request.headers.get(PREDICTED)) if tenant.trusted else None
            placed = self.dispatcher.come(ask, predicted, tenant.name, tenant.priority)
            placed.deadline_s = seconds_of(request.headers.get(DEADLINE))
            placed.due = began + min(placed.deadline_s, self.options.hold_s)
            entry.placed = placed
            return await self._serve(request, placed, entry)
        except RefusedError as error:
            if error.status == 429 and error.kind == "overloaded":
                self.meters.shed.labels(tenant.name).inc()
            raise
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

    async def _serve(self, request: web.BaseRequest, placed: Placement, entry: RequestRecord) -> web.StreamResponse:
        """Try backends until one accepts the request."""
        retries = Retries(self.budget, self.options.retries)
        try:
            while True:
                await self._place(placed, entry)
                backend = placed.backend
                assert backend is not None
                if entry.attempts == 0:
                    self.meters.opinion(placed)
                entry.backend, entry.attempts = backend.number, entry.attempts + 1
                if entry.span is not None:
                    entry.span.decided(placed, backend.number, {"url.full": backend.url})
                attempt = Attempt(self, request, placed, entry, retries)
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
                    return await attempt.send_lost_error(error)
                self.meters.retried.labels(str(backend.number)).inc()
                self.dispatcher.take_back(placed)
                placed.without |= {backend.number}
                if not self.others(placed):
                    placed.without = frozenset()  # take the first backend that returns to service
                self.dispatcher.ask_again()
        finally:
            retries.close()

    def others(self, placed: Placement, *but: Backend) -> bool:
        """Whether a backend in service, other than those in `but`, has not been tried for the request."""
        without = placed.without | {backend.number for backend in but}
        return any(not b.health.ejected for b in self.dispatcher.in_service(placed.ask.model, without))

    def _failed(self, backend: Backend, error: BackendLostError) -> RefusedError:
        """Return the error for a client that has received nothing of the response."""
        self.meters.requests.labels(str(backend.number), str(error.status)).inc()
        if isinstance(error, ElsewhereError):
            return RefusedError(error.status, f"no backend has answered ({error})", error.kind, 1)
        said = f"backend {backend.number} has failed ({error}); a response that has begun is not retried"
        return RefusedError(error.status, said, error.kind, 1)

    def used(self, placed: Placement, prompt: int, output: int) -> None:
        """Count the tokens of a request; the model is a label only if a backend has that name."""
        model = placed.ask.model
        served = placed.backend is not None and placed.backend.models is not None and model in placed.backend.models
        for kind, tokens in (("prompt", prompt), ("output", output)):
            self.meters.usage.labels(placed.tenant, model if served else "", kind).inc(tokens)
        tenant = self.tenants.named(placed.tenant)
        if tenant is not None:
            tenant.spend(prompt + output)

    def answered(self, placed: Placement, good: bool) -> None:
        """Report that a backend responded well, or failed."""
        self.dispatcher.now = time.monotonic()
        backend = placed.backend
        seconds = self.dispatcher.answered(placed, good)
        if seconds and backend is not None:
            self.meters.ejections.labels(str(backend.number)).inc()
            asyncio.get_running_loop().call_later(seconds, self._ask_again)

    def _ask_again(self) -> None:
        """Try held requests again, since an ejected backend may get its test request now."""
        self.dispatcher.now = time.monotonic()
        self.dispatcher.ask_again()

    async def _place(self, placed: Placement, entry: RequestRecord) -> None:
        """Wait until the request has a backend, within its hold and total time limits."""
        if self.dispatcher.offer(placed):
            return
        assert placed.placed is not None
        allowed = (
            (self.options.timeouts.total_s or math.inf, 504, "timeout"),
            (placed.deadline_s, 504, "timeout"),
            (self.options.hold_s, 503, "overloaded"),
        )
        seconds, status, kind = min(allowed, key=lambda limit: limit[0])
        since = time.monotonic()
        if entry.span is not None:
            entry.span.note("held")
        try:
            async with asyncio.timeout(max(seconds - (since - entry.began), 0)):
                await placed.placed
        except TimeoutError:
            raise RefusedError(status, f"no backend had capacity within {seconds:g} seconds", kind, 1) from None
        finally:
            entry.held_s += time.monotonic() - since
        self.meters.held_s.observe(time.monotonic() - entry.began)


def request_id(said: str) -> str:
    """Return the client's request id if it is printable ASCII; otherwise a new one."""
    if 0 < len(said) <= LONGEST_NAME and said.isascii() and said.isprintable():
        return said
    return f"{random.getrandbits(128):032x}"


def seconds_of(text: str | None) -> float:
    """Return the seconds in a deadline header; infinity if the header is absent or invalid."""
    seconds = predicted_tokens(text)
    return math.inf if seconds is None else seconds


def predicted_tokens(text: str | None) -> float | None:
    """Return the number in a header of predicted tokens; None if the header is absent or invalid."""
    if text is None or not text.isascii() or not text.replace(".", "", 1).isdigit() or len(text) > 12:
        return None
    return float(text)
