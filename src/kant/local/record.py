"""What is kept of a job of this machine, and what a person says when submitting one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

Text = Annotated[str, Meta(max_length=256)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


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


class StageOf(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stage of a workflow that a job is, and what the workflow's durations say of it, if all of them are given.

    `critical_path` has the stages of the longest way through the workflow, of a long one the first and the last;
    `length_s` is how long that takes, and `slack_s` by how much the longest way through this stage is shorter (-1: not
    known).
    """

    workflow: Text
    stage: Text
    critical_path: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    length_s: Annotated[float, Meta(ge=-1, le=1e12)] = -1.0
    slack_s: Annotated[float, Meta(ge=-1, le=1e12)] = -1.0


class Terminal(Struct, frozen=True, forbid_unknown_fields=True):
    """That a run reads what is typed by whoever is attached to it: from a terminal (`pty`) of so many rows and columns
    until somebody has another window, or else from a pipe."""

    pty: bool = True
    rows: Annotated[int, Meta(ge=1, le=9999)] = 24
    columns: Annotated[int, Meta(ge=1, le=9999)] = 80


Happening = Literal["submitted", "started", "requeued", "finished", "failed", "cancelled", "rejected"]
OVERS: tuple[Happening, ...] = ("finished", "failed", "cancelled", "rejected")


class Notice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who is told of what happens to a job: an address to which it is posted as JSON (`webhook`), or a `command` that
    reads that from its standard input. `on`: of what. `anywhere`: the address may lead to this machine and its
    networks; Kant sets it, for operators."""

    on: Annotated[tuple[Happening, ...], Meta(min_length=1, max_length=7)] = OVERS
    webhook: Annotated[str, Meta(max_length=2048)] = ""
    command: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    anywhere: bool = False


class Submission(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command to run, and what it asks for. `command` is a program and its arguments: no shell comes between.

    `gpus` is a whole number, or less than 1: a share of one GPU. Without GPUs `cpus` is 1 by default, else 0: not
    counted. `memory_mib` 0: not counted. A run gets no more of what is counted. `time_s` is the longest that one run
    may last (None: no limit); `warn_s` before that it gets SIGUSR1, if it has a handler. When it is stopped it gets
    SIGTERM, and SIGKILL `grace_s` later.
    With `singleton` it starts after every earlier job of its user and name has ended.
    `array` submits it once for each index; at most `array_most` of them wait for a place or run at once (0: all). It
    starts after the jobs `after` have ended, those of `after_ok` well and those of `after_not_ok` otherwise, and not
    before `begin`, in seconds since the Unix epoch; a failed job is tried again `retries` times. With `preemptible`
    false no other job takes its place. `stage` says which stage of a workflow it is. Without a `terminal` nobody can be
    attached, and its standard input is empty. It runs inside the `reservation` that it names, while that lasts.
    `training` says what it trains, in the words of a trace (docs/step-time.md). What it writes goes to the file
    `output`, too, or what is an error to the file `error`: names in which `%` and a letter stand for others
    (docs/up.md). With `slurm` its environment has the variables that Slurm gives a batch script. `notices` say who is
    told of it.
    """

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)]
    workdir: Annotated[str, Meta(max_length=4096)]
    env: dict[str, str] = {}
    name: Text = ""
    queue: Text = "default"
    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] = 0
    gpus: Annotated[float, Meta(ge=0, le=100_000)] = 0
    cpus: Amount | None = None
    memory_mib: Annotated[int, Meta(ge=0, le=10**9)] = 0
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    warn_s: Seconds = 60.0
    grace_s: Seconds = 30.0
    retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    array: Annotated[tuple[Annotated[int, Meta(ge=0, le=10**9)], ...], Meta(max_length=100_000)] = ()
    after: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    after_ok: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    after_not_ok: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    array_most: Annotated[int, Meta(ge=0, le=100_000)] = 0
    begin: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    singleton: bool = False
    hold: bool = False
    preemptible: bool = True
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    stage: StageOf | None = None
    terminal: Terminal | None = None
    reservation: Annotated[str, Meta(max_length=63)] = ""
    training: Annotated[str, Meta(max_length=2048)] = ""
    output: Annotated[str, Meta(max_length=4096)] = ""
    error: Annotated[str, Meta(max_length=4096)] = ""
    slurm: bool = False
    notices: Annotated[tuple[Notice, ...], Meta(max_length=8)] = ()


class WorkflowStage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job of a workflow, no array. It waits for earlier stages, by their places in the list, from 0: for those of
    `after` to end, for those of `after_ok` to end well."""

    job: Submission
    after: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1000)], ...], Meta(max_length=1000)] = ()
    after_ok: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1000)], ...], Meta(max_length=1000)] = ()


class WorkflowSubmission(Struct, frozen=True, forbid_unknown_fields=True):
    """The stages of a workflow, each after those that it waits for. All of them have `env` beside their own."""

    stages: Annotated[tuple[WorkflowStage, ...], Meta(min_length=1, max_length=1000)]
    env: dict[str, str] = {}


class BatchLine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A submission of a batch, and the number of the line where it stands: what is wrong with it is said of that."""

    job: Submission
    line: Annotated[int, Meta(ge=0, le=10**9)] = 0


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """Submissions that are queued together, or none of them. All have `env` beside their own."""

    lines: Annotated[tuple[BatchLine, ...], Meta(min_length=1, max_length=10_000)]
    env: dict[str, str] = {}


class JobUpdate(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be different of a job that waits; None: as it was. As in a `Submission`."""

    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    queue: Text | None = None
    name: Text | None = None


SignalName = Literal["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "STOP", "CONT", "KILL", "WINCH"]

FOR_HANDLERS = ("HUP", "USR1", "USR2", "WINCH")
"""Signals for those that handle them: others would be ended by them, or would not notice."""


class JobSignal(Struct, frozen=True, forbid_unknown_fields=True):
    """A signal for the processes of a job that runs, by its name without SIG.

    Those in `FOR_HANDLERS` go to the processes that handle them, the others to all.
    """

    signal: SignalName


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `attempt` counts its runs, `failures` those that failed. `stopping` says why a run of it is being stopped. `held_by`
    is the place of its run: rows of `model.placement`. `waited` splits the wait of a job that is over by cause,
    microseconds.
    """

    seq: int
    id: str
    submission: Submission
    digest: bytes  # of the submission, under which the store keeps it
    user: str
    submitted: int
    phase: JobPhase
    array: int = -1  # the first `seq` of its array
    index: int = -1
    after: tuple[str, ...] = ()
    after_ok: tuple[str, ...] = ()
    after_not_ok: tuple[str, ...] = ()
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

    @property
    def is_over(self) -> bool:
        return self.phase in OVER


class Book(Protocol):
    """Where records are kept. `write` returns when they are safe; it raises OSError where they cannot be."""

    def write(self, records: list[JobRecord]) -> None: ...

    def phase_of(self, job: str) -> JobPhase | None:
        """The phase of any job that ever was; None for one that never came."""
        ...
