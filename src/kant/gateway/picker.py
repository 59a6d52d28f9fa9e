"""An endpoint picker for the Gateway API Inference Extension: Envoy asks, and the dispatcher chooses the engine.

The protocol is version 1.0.0 of kubernetes-sigs/gateway-api-inference-extension, docs/proposals/004-endpoint-picker-
protocol: Envoy's ext_proc with streamed bodies. A request's head is answered once its body is complete. The answer has
the endpoint in a header and in the dynamic metadata, and further endpoints for Envoy's own retries.

Envoy may send only the head of the response (`response_body_mode: NONE`). Then the exchange ends with it, and the
engine's metrics show the request's progress (`looks.py`). If the gateway streams response bodies, as in the protocol,
they are passed on unchanged, and their tokens are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import grpc
from google.protobuf import struct_pb2

from kant.gateway.ask import FORWARDS, EventCount, RefusedError, count_for, read_ask, usage_of
from kant.gateway.attempt import MOST_ANSWER
from kant.gateway.backend import Backend, Placement
from kant.gateway.backends import Backends, Source
from kant.gateway.dispatch import Dispatcher
from kant.gateway.envoy import HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse
from kant.gateway.gossip import Gossip
from kant.gateway.outliers import judged
from kant.gateway.picker_metrics import PickerMetrics
from kant.gateway.proxy import DEADLINE, MOST_BODY, PREDICTED, PROGRAM, predicted_tokens, seconds_of
from kant.gateway.server import address, ended, tls_context
from kant.gateway.spans import TRACEPARENT, RequestSpans, Span
from kant.model.errors import InputError
from kant.serving.routing import TICK_S

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = ("", "liveness", "readiness", SERVICE)
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
FAIRNESS = "x-gateway-inference-fairness-id"
"""The unit of fair sharing, as set by the gateway."""

OBJECTIVE = "x-gateway-inference-objective"
"""The name of an InferenceObjective."""

SUBSET_SPACE, SPACE = "envoy.lb.subset_hint", "envoy.lb"
OVERWRITE = 2
"""HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD."""

PIECE = 62 << 10
"""The maximum number of bytes of a body in a message to Envoy, whose limit for a streamed body is 64 KiB."""

FALLBACKS = 2
"""The number of further endpoints, for Envoy's retries."""

PENDING = (("grpc.server.max_pending_requests", 100_000), ("grpc.server.max_pending_requests_hard_limit", 200_000))
"""By default, gRPC rejects some of more than 1,000 simultaneous requests at random. Kant's `Limits` decide instead."""

UNSHOWN = 0
"""BodySendMode.NONE: Envoy does not send the response body to the picker."""

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def endpoint(backend: Backend) -> str:
    """Return `ip:port` of a backend."""
    return urlsplit(backend.url).netloc


class Picker:
    """The handlers of the gRPC services."""

    def __init__(
        self, dispatcher: Dispatcher, hold_s: float, objectives: Mapping[str, int], spans: RequestSpans | None = None
    ) -> None:
        self.dispatcher, self.hold_s, self.objectives, self.spans = dispatcher, hold_s, objectives, spans
        self.metrics = PickerMetrics(dispatcher)
        self.draw = dispatcher.draw.spawn(1)[0]
        """For random choices that the simulator does not make."""

    async def process(self, requests: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        """Handle ExternalProcessor/Process: one HTTP request and its response."""
        exchange = _Exchange(self)
        try:
            async for request in requests:
                for answer in await exchange.take(request):
                    yield answer
                if exchange.over:
                    return
        finally:
            exchange.close()

    async def check(self, request: Any, _: Any) -> Any:
        """Handle Health/Check of the names in the protocol."""
        if request.service not in HEALTH:
            return HealthCheckResponse(status=SERVICE_UNKNOWN)
        ready = request.service == "liveness" or any(backend.up for backend in self.dispatcher.backends)
        return HealthCheckResponse(status=SERVING if ready else NOT_SERVING)


class _Exchange:
    """One HTTP request on its way through Envoy, and back."""

    def __init__(self, picker: Picker) -> None:
        self.picker, self.dispatcher = picker, picker.dispatcher
        self.headers: dict[str, str] = {}
        self.subset: frozenset[str] | None = None
        self.body = bytearray()
        self.placed: Placement | None = None
        self.count = EventCount()
        self.answer = bytearray()
        self.status, self.streams, self.over = 0, False, False
        self.served = -1
        """The number of the endpoint that was chosen, or that has served; -1: none."""
        self.refused = 0
        """The status with which the picker has refused the request; 0: it has not."""
        self.unseen = False
        """Whether Envoy does not show the response to the picker."""
        self.span: Span | None = None

    async def take(self, request: Any) -> list[Any]:
        """Return the answers to one message of Envoy."""
        kind = request.WhichOneof("choice")
        try:
            match kind:
                case "request_headers":
                    self.headers = _headers(request.request_headers.headers)
                    if self.picker.spans is not None:
                        self.span = self.picker.spans.begin(
                            self.headers.get(TRACEPARENT, ""), self.headers.get(":method", ""), self._path(),
                            time.monotonic(),
                        )  # fmt: skip
                    self.subset = _subset(request.metadata_context)
                    if request.HasField("protocol_config"):
                        self.unseen = request.protocol_config.response_body_mode == UNSHOWN
                    return await self._pick(True) if request.request_headers.end_of_stream else []
                case "request_body":
                    self.body += request.request_body.body
                    if len(self.body) > MOST_BODY:
                        said = f"the body: expected at most {MOST_BODY} bytes"
                        raise RefusedError(413, said, "invalid_request_error")
                    return await self._pick(False) if request.request_body.end_of_stream else []
                case "request_trailers":
                    return [ProcessingResponse(request_trailers={})]
                case "response_headers":
                    return self._response(request)
                case "response_body":
                    return self._came(request.response_body)
                case "response_trailers":
                    self._end()
                    return [ProcessingResponse(response_trailers={})]
        except RefusedError as error:
            self.over = True
            answer = _immediate(error, self._path())
            self.status = self.refused = answer.immediate_response.status.code
            return [answer]
        return []

    async def _pick(self, bodiless: bool) -> list[Any]:
        """Choose an endpoint. Returns the answers to the request's head and body."""
        path = self._path()
        if bodiless or path not in FORWARDS:  # no tokens to count, so any backend is fine
            may = [b for b in self.dispatcher.in_service("", frozenset()) if self._eligible(b)]
            if not may:
                raise RefusedError(503, "no endpoint is ready", "overloaded")
            return self._destination(
                [may[int(self.picker.draw.integers(len(may)))]], None if bodiless else bytes(self.body)
            )
        self.count = count_for(path)
        ask = read_ask(path, bytes(self.body), self.headers.get(PROGRAM, ""))
        level = -self.picker.objectives.get(self.headers.get(OBJECTIVE, ""), 0)  # a lower level goes first
        ask.yield_to(level if self.dispatcher.policy.by_priority else 0)  # engines without priorities refuse one
        self.dispatcher.now = time.monotonic()
        predicted = predicted_tokens(self.headers.get(PREDICTED))
        self.placed = self.dispatcher.come(ask, predicted, self.headers.get(FAIRNESS, ""), level)
        self.placed.unseen = self.unseen
        self.placed.deadline_s = seconds_of(self.headers.get(DEADLINE))
        self.placed.due = self.dispatcher.now + min(self.placed.deadline_s, self.picker.hold_s)
        self.placed.without = frozenset(b.number for b in self.dispatcher.backends if not self._eligible(b, False))
        if not any(self._eligible(b) for b in self.dispatcher.backends):
            raise RefusedError(503, "no endpoint is ready", "overloaded")
        await self._wait(self.placed)
        chosen = self.placed.backend
        assert chosen is not None
        without = self.placed.without | {chosen.number}
        others = self.dispatcher.in_service(ask.model, without)
        self.picker.draw.shuffle(others)
        others.sort(key=lambda b: b.site.requests)
        priority = self.dispatcher.sent_priority(self.placed)
        body = ask.forwarded(priority, self.dispatcher.policy.by_priority)
        return self._destination([chosen, *others[:FALLBACKS]], body)

    def _path(self) -> str:
        return self.headers.get(":path", "").partition("?")[0]

    async def _wait(self, placed: Placement) -> None:
        try:
            if self.dispatcher.offer(placed):
                return
            assert placed.placed is not None
            if self.span is not None:
                self.span.note("held")
            seconds, began = min(self.picker.hold_s, placed.deadline_s), time.monotonic()
            async with asyncio.timeout(seconds):
                await placed.placed
            self.picker.metrics.meters.held_s.observe(time.monotonic() - began)
        except TimeoutError:
            said = f"no endpoint had capacity within {seconds:g} seconds"
            raise RefusedError(429, said, "overloaded", 1) from None

    def _eligible(self, backend: Backend, now: bool = True) -> bool:
        """Whether the gateway allows a backend; with `now`, also whether the backend may get new requests."""
        allowed = self.subset is None or endpoint(backend) in self.subset
        return allowed and (not now or backend.open)

    def _destination(self, chosen: list[Backend], body: bytes | None) -> list[Any]:
        """Return the answer with the endpoints, then the body in pieces."""
        self.served = chosen[0].number
        where = ",".join(map(endpoint, chosen))
        if self.span is not None:
            self.span.decided(self.placed, chosen[0].number, {"kant.endpoints": where})
        changed = {DESTINATION: where}
        if body is not None and len(body) != len(self.body):
            changed["content-length"] = str(len(body))
        mutation = _set_headers(changed)
        head = ProcessingResponse(
            request_headers={"response": {"header_mutation": mutation, "clear_route_cache": True}}
        )
        head.dynamic_metadata.update({SPACE: {DESTINATION: where}})
        if body is None:
            return [head]
        pieces = [body[k : k + PIECE] for k in range(0, len(body), PIECE)] or [b""]
        last = len(pieces) - 1
        return [head, *(ProcessingResponse(request_body=_streamed(p, k == last)) for k, p in enumerate(pieces))]

    def _response(self, request: Any) -> list[Any]:
        """Process the head of the response: which endpoint served the request, and whether the response is a stream."""
        headers = _headers(request.response_headers.headers)
        self.status = int(headers[":status"]) if headers.get(":status", "").isdigit() else 0
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        for entry in request.metadata_context.filter_metadata:
            if entry.key == SPACE and SERVED in entry.value:
                self._moved(str(entry.value[SERVED]))
        if request.response_headers.end_of_stream or (self.unseen and self.status != 200):
            self._end()
        elif self.unseen:
            self._judge()
        return [ProcessingResponse(response_headers={"response": {}})]

    def _moved(self, where: str) -> None:
        """Record that Envoy retried the request on another endpoint, which has served it."""
        placed = self.placed
        if placed is None or placed.backend is None or endpoint(placed.backend) == where:
            return
        other = next((b for b in self.dispatcher.backends if endpoint(b) == where), None)
        if other is not None:
            self.served = other.number
            self.dispatcher.move(placed, other)

    def _came(self, body: Any) -> list[Any]:
        """Process a piece of the response body."""
        if self.placed is not None and not self.placed.over:
            if self.streams:
                before = self.count.events
                done = self.count.feed(body.body)
                if done:
                    if self.span is not None and not before:
                        self.span.note("first token")
                    self.dispatcher.said(self.placed, done)
            elif len(self.answer) + len(body.body) <= MOST_ANSWER:
                self.answer += body.body
        if body.end_of_stream:
            self._end()
        return [ProcessingResponse(response_body=_streamed(body.body, body.end_of_stream))]

    def _end(self) -> None:
        """End a complete response."""
        if self.placed is None or self.placed.over:
            return
        self._judge()
        usage = self.count.usage if self.streams else usage_of(bytes(self.answer))
        output = self.count.events if self.streams else usage[1] if usage else None
        self.dispatcher.end(self.placed, output if self.status == 200 else None, usage[0] if usage else None)

    def _judge(self) -> None:
        """Report whether the status is a success or a failure of the endpoint."""
        good = judged(self.status)
        if good is not None and self.placed is not None:
            self.dispatcher.now = time.monotonic()
            self.dispatcher.answered(self.placed, good)

    def close(self) -> None:
        """Handle the end of the exchange: an incomplete request has failed, unless its response continues unseen."""
        placed = self.placed
        if self.headers:
            self.picker.metrics.count(self.served, self.refused, self.status)
        if self.picker.spans is not None and self.span is not None:
            self.picker.spans.end(self.span, self.status or 499, placed)
        if placed is None or (self.unseen and self.status == 200 and placed.backend and placed.backend.measured):
            return
        self.dispatcher.end(placed, None)


def _headers(headers: Any) -> dict[str, str]:
    """Return names and values; Envoy sends values as bytes or as text."""
    return {row.key.lower(): row.value or row.raw_value.decode("latin-1") for row in headers.headers}


def _subset(metadata: Any) -> frozenset[str] | None:
    """Return the endpoints to choose from, given as a list or as text with commas; None if all are allowed."""
    for entry in metadata.filter_metadata:
        if entry.key == SUBSET_SPACE and SUBSET in entry.value:
            value = entry.value[SUBSET]
            listed = list(value.items()) if isinstance(value, struct_pb2.ListValue) else []
            parts = value.split(",") if isinstance(value, str) else listed
            return frozenset(part.strip() for part in parts if isinstance(part, str) and part.strip())
    return None


def _streamed(body: bytes, last: bool) -> dict[str, Any]:
    return {"response": {"body_mutation": {"streamed_response": {"body": body, "end_of_stream": last}}}}


def _set_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "set_headers": [
            {"header": {"key": key, "raw_value": value.encode()}, "append_action": OVERWRITE}
            for key, value in headers.items()
        ]
    }


def _immediate(error: RefusedError, path: str) -> Any:
    """Return Envoy's immediate response. Load shedding is 429, as the protocol says."""
    status = 429 if error.kind == "overloaded" and error.retry_after else error.status
    headers = {"content-type": "application/json"}
    if error.retry_after:
        headers["retry-after"] = str(error.retry_after)
    return ProcessingResponse(
        immediate_response={
            "status": {"code": status},
            "headers": _set_headers(headers),
            "body": error.body(path).decode(),
            "details": "kant",
        }
    )


def _certificate(files: tuple[Path, Path]) -> Any:
    """Return gRPC's certificate configuration; raises InputError if the files are no certificate and key."""
    tls_context(files)
    certificate, key = (file.read_bytes() for file in files)
    return grpc.ssl_server_certificate_configuration([(key, certificate)])


class PickerServer:
    """`async with PickerServer(…) as server`: serves until the block ends; `port` is the opened port."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        listen: str,
        hold_s: float,
        scrape_s: float,
        source: Source | None = None,
        events_port: int | None = None,
        tls: tuple[Path, Path] | None = None,
        objectives: Mapping[str, int] | None = None,
        gossip: Gossip | None = None,
        spans: RequestSpans | None = None,
        metrics: str | None = None,
    ) -> None:
        self.tls, self.gossip, self.spans = tls, gossip, spans
        self.metrics_at = None if metrics is None else address(metrics, "--metrics")
        self.certificate = None if tls is None else _certificate(tls)
        self.dispatcher, self.listen, self.scrape_s, self.source = dispatcher, listen, scrape_s, source
        self.events_port = events_port
        self.picker = Picker(dispatcher, hold_s, objectives or {}, spans)
        self.port = 0

    async def __aenter__(self) -> PickerServer:
        self.server = grpc.aio.server(options=PENDING)
        process = grpc.stream_stream_rpc_method_handler(
            self.picker.process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        check = grpc.unary_unary_rpc_method_handler(
            self.picker.check, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        )
        self.server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
            )
        )
        try:
            if self.certificate is None:
                self.port = self.server.add_insecure_port(self.listen)
            else:
                credentials = grpc.dynamic_ssl_server_credentials(self.certificate, lambda: self.certificate)
                self.port = self.server.add_secure_port(self.listen, credentials)
        except RuntimeError:
            raise InputError("--listen", "an address that is free", self.listen) from None
        await self.server.start()
        self.session = aiohttp.ClientSession()
        self.backends = Backends(
            self.dispatcher, self.session, self.scrape_s, self.source, self.events_port, self.gossip
        )
        try:
            await self.backends.open()
            if self.metrics_at is not None:
                await self.picker.metrics.open(*self.metrics_at)
        except BaseException:
            await self.picker.metrics.close()
            await self.backends.close()
            await self.server.stop(0)
            await self.session.close()
            raise
        self.ticking = asyncio.create_task(self._tick())
        self.sending = None if self.spans is None else asyncio.create_task(self.spans.run())
        return self

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.dispatcher.held:
                self.dispatcher.now = time.monotonic()
                self.dispatcher.ask_again()

    def reload(self) -> None:
        """Use the current certificate files for new connections; raises InputError."""
        if self.tls is not None:
            self.certificate = _certificate(self.tls)

    async def drain(self) -> None:
        """Accept no new requests, and let those in flight end."""
        await self.server.stop(30)

    async def __aexit__(self, *error: object) -> None:
        self.ticking.cancel()
        await self.picker.metrics.close()
        await self.backends.close()
        await self.server.stop(0)
        await ended(self.sending)
        await self.session.close()
