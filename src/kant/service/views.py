"""What the API takes and gives, as types: the schema is made of them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """A job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `array` is the `seq` of the first job of its array, -1 for none. `waits` says why a job waits, where that is known.
    """

    seq: int
    id: str
    array: int
    array_index: int
    phase: str
    name: str
    queue: str
    user: str
    priority: int
    gpus: float
    submitted: int
    started: int
    ended: int
    attempt: int
    failures: int
    code: int | None
    signal: int | None
    reason: str
    waits: str = ""


class Detail(Struct, frozen=True, forbid_unknown_fields=True):
    """A job with what was submitted (its environment by the names alone) and its place: node to GPU indices."""

    job: Job
    command: tuple[str, ...]
    workdir: str
    env: tuple[str, ...]
    time_s: float | None
    retries: int
    after: tuple[str, ...]
    after_ok: tuple[str, ...]
    stopping: str
    place: dict[str, str]
    log: str


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs, the latest first. `next` is the `before` of the next page; None where this is the last."""

    jobs: list[Job]
    next: int | None


class Ids(Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs that a request was about."""

    jobs: list[str]


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether Kant can write (`trouble` says why not), what it has, and its clock."""

    version: str
    pid: int
    profile: str
    cluster: str
    nodes: int
    gpus: int
    jobs: int
    running: int
    now_us: int
    trouble: str


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """What was wrong, in one sentence."""

    error: str


class Why(Struct, frozen=True):
    """Why a job waits, or where it stands: see docs/why.md for what an `answer` has."""

    job: str
    phase: str
    sentence: str
    answer: dict[str, Any] | None


class Answer(Struct, frozen=True):
    """An answer about the cluster. `time_us` is now on the clock of the run, which its other times are on too; the zero
    of that clock is `zero_us` on that of the jobs."""

    time_us: int
    zero_us: int


Limit = Annotated[int, Meta(ge=1, le=1000)]
