"""Exports a trace of each job, from submission to exit, to an OpenTelemetry collector.

A job is a span. Its child spans are its runs, and the times in which it is held, blocked or waiting. A span is sent
when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kant.live.otlp import Exporter, Value, attribute
from kant.local.record import JobPhase, JobRecord
from kant.local.trace_ids import run_name, span_of, trace_of

RUNS = (JobPhase.RUNNING, JobPhase.STOPPING)


class JobStage(NamedTuple):
    """The current stage of a job: the name of the span that will end with it, and its start in Unix microseconds."""

    name: str
    since: int


class Traces(Exporter):
    """Sends the spans of jobs. `changed` queues the spans that end with a job's change.

    The ids are derived from `key`; `now` returns the time in microseconds since the Unix epoch.
    """

    def __init__(self, url: str, key: bytes, now: Callable[[], int]) -> None:
        super().__init__(url, "kant")
        self.key, self.now = key, now
        self.stages: dict[str, JobStage] = {}

    def know(self, record: JobRecord) -> None:
        """Record the stage of a job that existed before Kant started."""
        self.stages[record.id] = JobStage(_stage(record), record.started if record.phase in RUNS else record.submitted)

    def changed(self, record: JobRecord) -> None:
        """Queue the spans that end with a job's change."""
        name = _stage(record)
        first = JobStage("waiting" if record.attempt or record.is_over else name, record.submitted)
        stage = self.stages.pop(record.id, first)
        if record.attempt and record.started >= stage.since and not stage.name.startswith("run"):
            self._add(record, stage.name, stage.since, record.started)
            stage = JobStage(run_name(record), record.started)
        if record.is_over:
            self._add(record, stage.name, stage.since, record.ended)
            self._add(record, "", record.submitted, record.ended)
            return
        if stage.name != name:
            now = self.now()
            self._add(record, stage.name, stage.since, now)
            stage = JobStage(name, now)
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
            "attributes": [attribute(key, value) for key, value in what.items()],
            "status": {"code": 2, "message": record.reason} if failed else {},
        }
        self.add(span)


def _stage(record: JobRecord) -> str:
    return run_name(record) if record.phase in RUNS else str(record.phase)


def _key_of(name: str, start: int) -> str:
    """Return the key of a span within its job: `run N` for a run, the name and start for any other stage."""
    return name if name.startswith("run ") else f"{name} {start}"
