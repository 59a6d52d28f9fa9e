"""Exports a trace of each job, from submission to exit, to an OpenTelemetry collector.

A job is a span. Its child spans are its times of being held, blocked or waiting, and its runs. A span is sent when it
ends. Source: OTLP over HTTP with JSON, https://opentelemetry.io/docs/specs/otlp/.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from kant import __version__
from kant.live.logs import log_event
from kant.local.record import JobPhase, JobRecord
from kant.local.trace_ids import run_name, span_of, trace_of
from kant.model.errors import InputError

log = logging.getLogger("kant.service")
MOST_WAITING = 10_000
AT_ONCE = 500
PAUSE = 1.0  # seconds between two requests; doubled after each failure, up to a minute
PATIENCE = 10.0  # seconds for one request
AT_END = 2.0  # and for the last one, at shutdown
AGAIN = (429, 502, 503, 504)
"""HTTP statuses after which OTLP requires a retry."""
RUNS = (JobPhase.RUNNING, JobPhase.STOPPING)

Value = str | int | float


class Stage(NamedTuple):
    """The current stage of a job: the name of the span that ends with it, and its start in Unix microseconds."""

    name: str
    since: int


def traces_url(text: str, option: str) -> str:
    """Return the URL for spans from the address of a collector. Raises InputError."""
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


class Traces:
    """Sends the spans of jobs. `changed` queues those of a change and returns at once; `run` sends them.

    The ids are derived from `key`; `now` is the clock in microseconds since the Unix epoch.
    """

    def __init__(self, url: str, key: bytes, now: Callable[[], int]) -> None:
        self.url, self.key, self.now = url, key, now
        self.stages: dict[str, Stage] = {}
        self.waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)
        self._awake = asyncio.Event()

    def know(self, record: JobRecord) -> None:
        """Note the stage of a job that existed before."""
        self.stages[record.id] = Stage(_stage(record), record.started if record.phase in RUNS else record.submitted)

    def changed(self, record: JobRecord) -> None:
        """Queue the spans that end with a job's change."""
        name = _stage(record)
        first = Stage("waiting" if record.attempt or record.is_over else name, record.submitted)
        stage = self.stages.pop(record.id, first)
        if record.attempt and record.started >= stage.since and not stage.name.startswith("run"):
            self._add(record, stage.name, stage.since, record.started)
            stage = Stage(run_name(record), record.started)
        if record.is_over:
            self._add(record, stage.name, stage.since, record.ended)
            self._add(record, "", record.submitted, record.ended)
            return
        if stage.name != name:
            now = self.now()
            self._add(record, stage.name, stage.since, now)
            stage = Stage(name, now)
        self.stages[record.id] = stage

    def _add(self, record: JobRecord, name: str, start: int, end: int) -> None:
        trace, above = trace_of(self.key, record)
        own = span_of(self.key, record)
        what: dict[str, Value] = {
            "kant.job.id": record.id, "kant.job.name": record.submission.name, "kant.queue": record.submission.queue,
            "enduser.id": record.user, "kant.gpus": record.submission.gpus,
        }  # fmt: skip
        ended = name.startswith("run") or not name
        what |= {"process.exit.code": record.code} if ended and record.code is not None else {}
        what |= {"kant.reason": record.reason} if ended and record.reason else {}
        failed = ended and record.phase in (JobPhase.FAILED, JobPhase.REJECTED)
        span = {
            "traceId": trace,
            "spanId": span_of(self.key, record, _key_of(name, start)) if name else own,
            "parentSpanId": own if name else above,
            "name": name or f"job {record.submission.name or record.id}",
            "kind": 1,
            "startTimeUnixNano": str(start * 1000),
            "endTimeUnixNano": str(max(start, end) * 1000),
            "attributes": [_attribute(key, value) for key, value in what.items()],
            "status": {"code": 2, "message": record.reason} if failed else {},
        }
        self.waiting.append(span)
        self._awake.set()

    async def run(self) -> None:
        """Send spans as they end until cancelled, and then the rest once.

        If the collector fails for long, the oldest spans are lost.
        """
        pause, sent = PAUSE, headers()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            try:
                while True:
                    await self._awake.wait()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 60.0) if await self._send(session, sent) else PAUSE
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AT_END):
                        await self._send(session, sent)

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
        """Post spans; return whether to send them again, and the error."""
        scope = {"scope": {"name": "kant", "version": __version__}, "spans": spans}
        resource = {"attributes": [_attribute("service.name", "kant")]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
        try:
            async with session.post(self.url, json=body, headers=sent, allow_redirects=False) as answer:
                fine = 200 <= answer.status < 300
                return answer.status in AGAIN, "" if fine else f"the answer is {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return True, str(error) or f"it took more than {PATIENCE:g} s"


def _stage(record: JobRecord) -> str:
    return run_name(record) if record.phase in RUNS else str(record.phase)


def _key_of(name: str, start: int) -> str:
    """Return the key of a span within its job: a run's number, or the name and start of another stage."""
    return name if name.startswith("run ") else f"{name} {start}"


def _attribute(key: str, value: Value) -> dict[str, Any]:
    kind = "stringValue" if isinstance(value, str) else "doubleValue" if isinstance(value, float) else "intValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}
