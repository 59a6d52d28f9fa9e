"""Exports ended spans to an OpenTelemetry collector, in batches.

Sources: OTLP over HTTP with JSON, https://opentelemetry.io/docs/specs/otlp/; W3C Trace Context,
https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections import deque
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp

from kant import __version__
from kant.live.logs import log_event
from kant.model.errors import InputError

log = logging.getLogger("kant.service")
MOST_WAITING = 10_000
AT_ONCE = 500
PAUSE = 1.0  # seconds between two requests of fewer spans; doubled after each failure, up to a minute
PATIENCE = 10.0  # seconds for one request
AT_END = 2.0  # seconds for the last request, at shutdown
AGAIN = (429, 502, 503, 504)
"""HTTP statuses after which OTLP requires a retry."""

Value = str | int | float


def traces_url(text: str, option: str) -> str:
    """Return the URL to which a collector with this address receives spans. Raises InputError if it is invalid."""
    try:
        found = urlsplit(text)
        valid = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise InputError(option, "the address of a collector, such as http://localhost:4318", text)
    return text if text.endswith("/v1/traces") else text.rstrip("/") + "/v1/traces"


def headers() -> dict[str, str]:
    """Return the headers of OTEL_EXPORTER_OTLP_HEADERS: `name=value,name=value`, with URL-encoded values."""
    pairs = (pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","))
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def parent_of(traceparent: str) -> tuple[str, str, bool] | None:
    """Return (trace id, span id, whether they are sampled) of a `traceparent` header; None if it is invalid."""
    match = _PARENT.fullmatch(traceparent)
    return None if match is None else (match[1], match[2], bool(int(match[3], 16) & 1))


class Exporter:
    """Sends spans to the collector at `url` under the service name `service`. `add` queues spans; `run` sends them."""

    def __init__(self, url: str, service: str) -> None:
        self.url, self.service = url, service
        self.waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)
        self._awake = asyncio.Event()

    def add(self, span: dict[str, Any]) -> None:
        """Queue an ended span, given as an OTLP JSON object."""
        self.waiting.append(span)
        self._awake.set()

    async def run(self) -> None:
        """Send spans as they end until cancelled, and then send the rest once.

        If the collector fails for long, the oldest spans are lost.
        """
        pause, sent = PAUSE, headers()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            try:
                while True:
                    await self._awake.wait()
                    await asyncio.sleep(pause)
                    while not (again := await self._send(session, sent)) and len(self.waiting) >= AT_ONCE:
                        pass
                    pause = min(pause * 2, 60.0) if again else PAUSE
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AT_END):
                        while self.waiting and not await self._send(session, sent):
                            pass

    async def _send(self, session: aiohttp.ClientSession, sent: dict[str, str]) -> bool:
        """Send the spans that have waited longest. Return True if they must be sent again."""
        spans = [self.waiting.popleft() for _ in range(min(len(self.waiting), AT_ONCE))]
        again, why = await self._post(session, spans, sent) if spans else (False, "")
        if why:
            log_event(log, "traces are not taken", logging.WARNING, to=self.url, spans=len(spans), error=why)
        if again:
            self._put_back(spans)
        if not self.waiting:
            self._awake.clear()
        return again

    def _put_back(self, spans: list[dict[str, Any]]) -> None:
        """Put spans back at the front of the queue; if it is full, drop the oldest."""
        lost = max(len(self.waiting) + len(spans) - MOST_WAITING, 0)
        self.waiting.extendleft(reversed(spans[lost:]))

    async def _post(
        self, session: aiohttp.ClientSession, spans: list[dict[str, Any]], sent: dict[str, str]
    ) -> tuple[bool, str]:
        """Post spans; return whether to send them again, and the error ("": none)."""
        scope = {"scope": {"name": "kant", "version": __version__}, "spans": spans}
        resource = {"attributes": [attribute("service.name", self.service)]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
        try:
            async with session.post(self.url, json=body, headers=sent, allow_redirects=False) as answer:
                fine = 200 <= answer.status < 300
                return answer.status in AGAIN, "" if fine else f"the collector answered with status {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return True, str(error) or f"the collector did not answer within {PATIENCE:g} s"


def attribute(key: str, value: Value) -> dict[str, Any]:
    """Return an attribute of a span as an OTLP JSON object."""
    kind = "stringValue" if isinstance(value, str) else "doubleValue" if isinstance(value, float) else "intValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}
