"""The ids of a job's trace, by which its runs find it: the same after a restart, and known before anything is sent.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/; TRACEPARENT in the environment is what OpenTelemetry
reads and hands on there.
"""

from __future__ import annotations

import hashlib
import re

from kant.local.record import JobRecord

VARIABLE = "TRACEPARENT"
_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


def trace_of(key: bytes, record: JobRecord) -> tuple[str, str]:
    """The trace of a job, and the span of it that is above the job's ("": none): whoever submitted it may have one."""
    match = _PARENT.fullmatch(record.submission.env.get(VARIABLE, ""))
    return (match[1], match[2]) if match else (_hash(key, record.id, 16), "")


def span_of(key: bytes, record: JobRecord, name: str = "") -> str:
    """The span of a job, or the one of this name below it. `key` tells the jobs of one Kant from those of others."""
    return _hash(key, f"{record.id} {name}", 8)


def run_name(record: JobRecord) -> str:
    """The name of the span of the present run."""
    return f"run {record.attempt}"


def traceparent(key: bytes, record: JobRecord) -> str:
    """What the present run of a job has as TRACEPARENT: spans of its processes go below that of the run."""
    return f"00-{trace_of(key, record)[0]}-{span_of(key, record, run_name(record))}-01"


def _hash(key: bytes, text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), key=key, digest_size=size).hexdigest()
