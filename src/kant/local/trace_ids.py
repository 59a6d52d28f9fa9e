"""The ids of a job's trace, which its runs use. They stay the same after a restart, and are known before a span ends.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/; OpenTelemetry reads and passes on TRACEPARENT in the
environment.
"""

from __future__ import annotations

import hashlib

from kant.live.otlp import parent_of
from kant.local.record import JobRecord

VARIABLE = "TRACEPARENT"


def trace_of(key: bytes, record: JobRecord) -> tuple[str, str]:
    """Return the ids of a job's trace and parent span, both of which the submitter may set ("": no parent)."""
    parent = parent_of(record.submission.env.get(VARIABLE, ""))
    return parent[:2] if parent else (_hash(key, record.id, 16), "")


def span_of(key: bytes, record: JobRecord, name: str = "") -> str:
    """Return the id of a job's span, or of its child span of this name. Two Kants have different keys, and so ids."""
    return _hash(key, f"{record.id} {name}", 8)


def run_name(record: JobRecord) -> str:
    """Return the span name of the current run."""
    return f"run {record.attempt}"


def traceparent(key: bytes, record: JobRecord) -> str:
    """Return TRACEPARENT for the current run of a job: spans of its processes become children of the run's span."""
    return f"00-{trace_of(key, record)[0]}-{span_of(key, record, run_name(record))}-01"


def _hash(key: bytes, text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), key=key, digest_size=size).hexdigest()
