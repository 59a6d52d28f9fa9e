"""Slots: runs that hold resources and wait for a short job, which a front end assigns without a request to Kant.

For the core a slot is a running job, so its resources are in use. Its supervisor waits for the file `given` in the
folder of the run, which contains the job, or null if no job comes. The first process to create this file decides: a
slot gets one job or is taken back, never both, and after a crash the file says which.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from kant.local import supervisor
from kant.local.processes import since_boot, started
from kant.local.record import JobRecord
from kant.local.runs import Spec, read_claim, read_spec
from kant.model.submission import Submission

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = "given"
SLOT = ("",)
"""The command of a slot, which no job can have."""
LASTS_S = 600.0
"""A slot without a job ends after this time, in seconds; normally Kant takes it back long before."""
OF_PLACE = ("gpus", "cpus", "memory_mib", "queue", "priority", "preemptible", "account", "qos", "comment")
OF_JOB = ("command", "env", "workdir", "name", "umask", "time_s", "grace_s", "warn_s", "warn_signal")
"""Fields of a submission that must be equal in a slot and its job, and fields that are taken from the job."""


class Given(Struct, frozen=True):
    """The job that a slot got and its digest, for the supervisor and for Kant. `time`: microseconds since boot."""

    spec: Spec
    job: Submission
    digest: bytes
    time: int


def slot_for(job: Submission) -> Submission | None:
    """Return the kind of slot (a submission) that fits a short job; None if the job has features that slots lack."""
    asked = {name: getattr(job, name) for name in OF_PLACE}
    slot = Submission(command=SLOT, workdir="/", env={}, name="(slot)", time_s=LASTS_S, **asked)
    same = structs.replace(job, **{name: getattr(slot, name) for name in OF_JOB}) == slot
    return slot if same else None


def is_slot(record: JobRecord) -> bool:
    """Whether a record is a slot without a job."""
    return record.submission.command == SLOT


def give(folder: Path, job: Submission, digest: bytes) -> bool:
    """Give a slot its job, which starts at once. Return False if the slot has been taken back. Raises OSError."""
    spec = read_spec(folder)
    if spec is None:
        return False
    threads = {name: value for name, value in spec.env.items() if name == "OMP_NUM_THREADS"}
    own = {name: value for name, value in spec.env.items() if name not in threads}
    spec = structs.replace(
        spec,
        command=job.command,
        env=threads | job.env | own | {"KANT_JOB_NAME": job.name},
        workdir=job.workdir,
        umask=job.umask,
        grace_s=job.grace_s,
        limit_s=job.time_s,
        warn_s=job.warn_s,
        warn_signal=job.warn_signal,
    )
    given = msgspec.json.encode(Given(spec, job, digest, since_boot())).decode()
    return _decide(folder, given)


def withdraw(folder: Path) -> None:
    """Take a slot back: it gets no job from now on, and ends if it has no job. Raises OSError."""
    _decide(folder, "null")


def _decide(folder: Path, given: str) -> bool:
    if not supervisor.claim(str(folder), given, GIVEN):
        return False
    claim = read_claim(folder)
    if claim is not None and started(claim.pid) == claim.start:  # otherwise the slot reads the file when it begins
        with contextlib.suppress(ProcessLookupError):
            os.kill(claim.pid, signal.SIGHUP)
    return True


def given_to(folder: Path) -> Given | None:
    """Return the job that a slot got; None if it has no job."""
    try:
        return msgspec.json.decode((folder / GIVEN).read_bytes(), type=Given | None)
    except FileNotFoundError:
        return None
