"""`kant wait`: waits for jobs, and returns their exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Home, Json
from kant.cli.kube_options import Kube
from kant.cli.output import print_json, printable
from kant.model.errors import InputError
from kant.service.client import ServiceClient, home_of

AT_A_TIME = 30  # seconds for which one request waits
NOT_WELL = 1  # the exit code for jobs without one
SIGNALLED = 128  # plus the signal, as in shells


def wait(
    *jobs: Annotated[str, Parameter(help="Ids of jobs or of arrays.")],
    home: Home = None,
    json: Json = False,
) -> int:
    """Wait until jobs have ended, and print how each has ended.

    The exit code is that of the job: 128 + N if signal N ended it, 1 if it was cancelled or rejected. For several jobs,
    it is the first exit code that is not 0.
    """
    if not jobs:
        raise InputError("JOBS", "the ids of jobs")
    client = ServiceClient(home_of(home))
    ended: list[dict[str, Any]] = []
    for job in jobs:
        for each in outcomes(client, job):
            ended.append(each)
            if not json:
                print(f"{each['id']}: {_sentence(each)}", flush=True)
    if json:
        print_json({"jobs": ended, "code": code_of(ended)})
    return code_of(ended)


def wait_for(home: Path | None, there: Kube | None, jobs: tuple[str, ...]) -> int:
    """Wait until jobs that were just submitted are over; return the exit code."""
    if there and home is None:
        raise InputError("--wait", "a job of this machine (on Kubernetes: kubectl wait)")
    client = ServiceClient(home_of(home))
    ended = [each for job in jobs for each in outcomes(client, job)]
    for each in ended:
        if each["phase"] != "finished":
            print(f"kant: job {each['id']}: {_sentence(each)}", file=sys.stderr)
    return code_of(ended)


def outcomes(client: ServiceClient, job: str) -> list[dict[str, Any]]:
    """Wait until a job, or all jobs of an array, have ended; return how each ended."""
    while True:
        found = client.get(client.job(job, "outcome"), wait=AT_A_TIME)
        if found["over"]:
            return list(found["jobs"])


def code_of(ended: list[dict[str, Any]]) -> int:
    """Return the first exit code that is not 0; 0 if all succeeded."""
    return next((code for code in map(_code, ended) if code), 0)


def _code(job: dict[str, Any]) -> int:
    if job["phase"] == "finished":
        return 0
    if job["phase"] == "failed" and job["signal"] is not None:
        return SIGNALLED + int(job["signal"])
    return int(job["code"] or NOT_WELL) if job["phase"] == "failed" else NOT_WELL


def _sentence(job: dict[str, Any]) -> str:
    return str(job["phase"]) + (f": {printable(job['reason'])}" if job["reason"] else "")
