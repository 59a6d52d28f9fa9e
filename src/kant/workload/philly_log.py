"""Microsoft Philly as it was published: `cluster_job_log`, a JSON list of jobs with their attempts.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC'19
(msr-fiddle/philly-traces, CC-BY-4.0); keys are those of its README. `philly.py` reads the CSV that AdaptDL made of it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from kant.files import open_bytes
from kant.model.errors import InputError
from kant.workload.logged import logged_jobs
from kant.workload.table import MAX_TIME, Field, parse_number
from kant.workload.trace import Trace

FIELDS = (
    Field("jobid", "text", "identifier"),
    Field("vc", "text", "virtual cluster, hashed"),
    Field("user", "text", "who submitted it, hashed", default=""),
    Field("submitted_time", "moment", "submission", high=MAX_TIME),
    Field("attempts", "text", "each with `start_time`, `end_time` and `detail`: the `gpus` on each server"),
)
_MOMENT = Field("time", "moment", "", high=MAX_TIME)


class _Server(msgspec.Struct):
    gpus: list[str]


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Server] = []


class _Job(msgspec.Struct):
    jobid: str
    vc: str
    submitted_time: str
    attempts: list[_Attempt]
    user: str = ""


def parse(path: Path) -> Trace:
    """Read the jobs with GPUs that ran. Queue and slice are the virtual cluster.

    A job's run time is the sum of its attempts with known start and end. Its GPUs are those of the last attempt. The
    scheduler chose the servers of a job, so only the total of GPUs is kept. Raises InputError if the file is not such a
    list.
    """
    with open_bytes(path) as stream:
        content = stream.read()
    try:
        found = msgspec.json.decode(content, type=list[_Job])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"a cluster_job_log of Philly, a JSON list of jobs ({error})") from None
    submit = [_moment(path, job.jobid, "submitted_time", job.submitted_time) for job in found]
    return logged_jobs(
        path,
        "jobid",
        lambda row: f"job {row + 1} of the list",
        ids=[job.jobid for job in found],
        submit=np.array(submit, dtype=np.int64),
        runtime=np.array([sum(_span(path, job.jobid, each) for each in job.attempts) for job in found], dtype=np.int64),
        gpus=np.array([_gpus(job) for job in found], dtype=np.int64),
        nodes=np.zeros(len(found), dtype=np.int64),
        cpu=np.zeros(len(found), dtype=np.int64),
        queue=[job.vc for job in found],
        user=[job.user for job in found],
        slice_kind="virtual cluster",
    )


def _span(path: Path, job: str, attempt: _Attempt) -> int:
    """Return the run time of an attempt; 0 if unknown."""
    if attempt.start_time in (None, "", "None") or attempt.end_time in (None, "", "None"):
        return 0
    start, end = (_moment(path, job, name, getattr(attempt, name) or "") for name in ("start_time", "end_time"))
    return max(end - start, 0)


def _gpus(job: _Job) -> int:
    return sum(len(server.gpus) for server in job.attempts[-1].detail) if job.attempts else 0


def _moment(path: Path, job: str, name: str, text: str) -> int:
    try:
        return parse_number(_MOMENT, text)
    except ValueError:
        raise InputError(f"{path}, job {job}, {name}", _MOMENT.expected, text) from None
