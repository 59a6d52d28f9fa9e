"""A span for each request that a router or a picker handles, with events: held, decided, first token.

Attributes are named as in OpenTelemetry's conventions for HTTP and generative AI. They contain no text of a request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from kant.gateway.backend import Placement
from kant.live.otlp import Exporter, Value, attribute, parent_of

TRACEPARENT = "traceparent"
"""W3C Trace Context's header."""

LONGEST_NAME = 128
SERVER = 2
FAILED = 2
"""SPAN_KIND_SERVER and STATUS_CODE_ERROR of OTLP."""


class Span:
    """The span of one request. `began` is in seconds of the monotonic clock; `parent` is "" for the root of a trace."""

    __slots__ = ("began", "events", "id", "method", "parent", "path", "trace")

    def __init__(self, trace: str, parent: str, method: str, path: str, began: float) -> None:
        self.trace, self.parent, self.method, self.path, self.began = trace, parent, method, path, began
        self.id = f"{random.getrandbits(64) or 1:016x}"
        self.events: list[tuple[str, float, dict[str, Value]]] = []

    @property
    def traceparent(self) -> str:
        """Return the header that makes the engine's spans children of this span."""
        return f"00-{self.trace}-{self.id}-01"

    def decided(self, placed: Placement | None, backend: int, what: Mapping[str, Value]) -> None:
        """Record that a request has a backend, and the shadow router's decision about it, if there is one."""
        of: dict[str, Value] = {"kant.backend": backend}
        if placed is not None and placed.opinion is not None:
            other, later_s, _ = placed.opinion
            of |= {"kant.shadow.backend": -1 if other is None else other, "kant.shadow.later_s": later_s}
        self.note("decided", of | dict(what))

    def note(self, name: str, what: Mapping[str, Value] | None = None) -> None:
        """Add an event with the current time."""
        self.events.append((name, time.monotonic(), dict(what or {})))


class RequestSpans(Exporter):
    """Sends the spans of requests, under the name of a service."""

    def __init__(self, url: str, service: str) -> None:
        super().__init__(url, service)
        self.offset_s = time.time() - time.monotonic()

    def begin(self, traceparent: str, method: str, path: str, began: float) -> Span | None:
        """Begin a child of the caller's span; None if the caller does not sample its trace."""
        found = parent_of(traceparent)
        if found is None:
            return Span(f"{random.getrandbits(128) or 1:032x}", "", method, path, began)
        trace, parent, sampled = found
        return Span(trace, parent, method, path, began) if sampled else None

    def end(self, span: Span, status: int, placed: Placement | None, **what: Value) -> None:
        """End a span now, and queue it for sending. `status` is an HTTP status; 499: the client has disconnected."""
        facts: dict[str, Value] = {
            "http.request.method": span.method, "url.path": span.path, "http.response.status_code": status,
        }  # fmt: skip
        if placed is not None:
            facts["kant.tenant"] = placed.tenant
            if placed.ask.model:
                facts["gen_ai.request.model"] = placed.ask.model[:LONGEST_NAME]
        self.add(
            {
                "traceId": span.trace, "spanId": span.id, "parentSpanId": span.parent,
                "name": f"{span.method} {span.path}", "kind": SERVER, "startTimeUnixNano": self._at(span.began),
                "endTimeUnixNano": self._at(time.monotonic()), "attributes": _attributes(facts | what),
                "events": [
                    {"name": name, "timeUnixNano": self._at(when), "attributes": _attributes(of)}
                    for name, when, of in span.events
                ],
                "status": {"code": FAILED} if status >= 500 else {},
            }
        )  # fmt: skip

    def _at(self, when: float) -> str:
        return str(int((when + self.offset_s) * 1e9))


def _attributes(what: dict[str, Value]) -> list[dict[str, Any]]:
    return [attribute(key, value) for key, value in what.items()]
