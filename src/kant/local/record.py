"""The stored record of a job, and the requests that clients submit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

from kant.model.job_request import Jobs, SignalName
from kant.model.submission import Submission, Text


class JobPhase(StrEnum):
    """The phase of a job's life."""

    HELD = "held"
    BLOCKED = "blocked"  # another job has to end first
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


OVER = frozenset({JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.REJECTED})


class WorkflowStage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job of a workflow, not an array. It waits for earlier stages, given by their indices in the list, from 0: for
    those of `after` to end, for those of `after_ok` to succeed."""

    job: Submission
    after: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1000)], ...], Meta(max_length=1000)] = ()
    after_ok: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1000)], ...], Meta(max_length=1000)] = ()


class WorkflowSubmission(Struct, frozen=True, forbid_unknown_fields=True):
    """The stages of a workflow, each after those that it waits for. `env` is added to the environment of each."""

    stages: Annotated[tuple[WorkflowStage, ...], Meta(min_length=1, max_length=1000)]
    env: dict[str, str] = {}


class BatchLine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A submission of a batch, and its line number, which error messages name."""

    job: Submission
    line: Annotated[int, Meta(ge=0, le=10**9)] = 0


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """Submissions that are queued together, or not at all. `env` is added to the environment of each."""

    lines: Annotated[tuple[BatchLine, ...], Meta(min_length=1, max_length=10_000)]
    env: dict[str, str] = {}


class Dependencies(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The jobs that a job depends on, with the condition for each, as in a `Submission`."""

    after: Jobs = ()
    after_ok: Jobs = ()
    after_not_ok: Jobs = ()
    after_started: Jobs = ()
    after_each: Jobs = ()
    after_one: bool = False
    singleton: bool = False


class JobUpdate(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a waiting job, or of `time_s` alone of a running one; None: unchanged. The fields are those of a
    `Submission`. `dependencies` replace all earlier ones."""

    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    queue: Text | None = None
    name: Text | None = None
    dependencies: Dependencies | None = None


FOR_HANDLERS = ("HUP", "USR1", "USR2", "WINCH")
"""Signals that are sent only to processes with a handler: other processes would be killed, or ignore the signal."""


class JobSignal(Struct, frozen=True, forbid_unknown_fields=True):
    """A signal for the processes of a running job, by its name without SIG.

    Those in `FOR_HANDLERS` go to the processes that handle them, the others to all.
    """

    signal: SignalName


class QueueNames(Struct, frozen=True, forbid_unknown_fields=True):
    """Queues by name; none: all of them."""

    queues: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()


class MachineLeaves(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Drain a joined machine; it leaves once nothing runs on it.

    After `within_s` seconds the jobs on it are stopped and wait again (None: they run to their end). `stays`: cancel
    this request.
    """

    within_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    stays: bool = False


Level = Literal["", "node", "hbd", "leaf", "spine", "superspine", "cluster"]


class ReservationRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`gpus` close to each other for `duration_s` from `start` on (seconds since the Unix epoch; 0: now).

    They are in one domain of the level `within`; with "", in one node if that is large enough, otherwise anywhere in
    whole nodes, except for the last. `model` "": of any single GPU model. Jobs of these `queues`, and of those below
    them, may use it; jobs of any queue if empty.
    """

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    gpus: Annotated[int, Meta(ge=1, le=10_000_000)]
    duration_s: Annotated[float, Meta(gt=0, le=1e9)]
    start: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    within: Level = ""
    model: Text = ""
    queues: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `attempt` counts its runs, `failures` the failed runs. `stopping` says why its run is being stopped. `place` is the
    allocation of its run, as rows of `model/placement.py`. `waited` splits the wait of an ended job by cause, in
    microseconds. `rss_kib` is the peak memory of one process of its last run.
    """

    seq: int
    id: str
    submission: Submission
    digest: bytes  # of the submission: the key under which the store keeps it
    user: str
    submitted: int
    phase: JobPhase
    array: int = -1  # the first job's `seq` in its array
    index: int = -1
    after: tuple[str, ...] = ()
    after_ok: tuple[str, ...] = ()
    after_not_ok: tuple[str, ...] = ()
    after_started: tuple[str, ...] = ()
    started: int = -1
    ended: int = -1
    attempt: int = 0
    failures: int = 0
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    stopping: str = ""
    place: list[list[int]] = field(default_factory=list)
    waited: dict[str, int] = field(default_factory=dict)
    rss_kib: int = 0

    @property
    def ahead(self) -> list[str]:
        """The ids of all jobs on which this job depends, with any condition."""
        started = (job.partition("+")[0] for job in self.after_started)
        return [*self.after, *self.after_ok, *self.after_not_ok, *started]

    @property
    def is_over(self) -> bool:
        return self.phase in OVER


class RecordStore(Protocol):
    """Storage of records. `write` returns when the records are on disk; it raises OSError if that is impossible."""

    def write(self, records: list[JobRecord]) -> None: ...

    def phase_of(self, job: str) -> JobPhase | None:
        """Return the phase of a job, ended or not; None if the job is unknown."""
        ...
