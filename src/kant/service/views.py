"""What the API takes and gives, as types: the schema is made of them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from kant.model.submission import StageOf, Terminal
from kant.service.shown import Shown


class JobRow(Shown, frozen=True):
    """A job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `array` is the `seq` of the first job of its array, -1 for none. `waits` says why a job waits, where that is known.
    `nodes` has the nodes on which it runs, each with the indices of its GPUs there, such as "0-3"; `limit_us` is the
    longest that it may run, -1 for no limit.
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
    nodes: dict[str, str] = field(default_factory=dict)
    limit_us: int = -1


class Attempt(Shown, frozen=True):
    """A run of a job. `ran_us`: how long it lasted, -1 while it does, or where nobody knows.

    `why` is `limit`, `memory` or `stopped` where it was ended. `cpu_us` is the time of cores that it took, `rss_kib`
    the most memory that one of its processes had, `dropped` the bytes of output for which there was no room.
    """

    number: int
    code: int | None = None
    signal: int | None = None
    why: str = ""
    ran_us: int = -1
    cpu_us: int = 0
    rss_kib: int = 0
    dropped: int = 0


class GpuUsed(Shown, frozen=True):
    """What a job that runs does with its GPUs: the share of the time in which they were busy, of late and since it
    began; MiB of their memory in use, the most that was, and of all. `warning`: that they idle, and what comes of it.
    """

    busy: float
    busy_mean: float
    memory_mib: int
    peak_mib: int
    total_mib: int
    warning: str = ""


class JobDetail(Shown, frozen=True):
    """A job with what was submitted (its environment by the names alone) and its place: node to GPU indices.

    `cpus` None: as by default. `attempts` has its runs, the last hundred of them.

    `hidden`: the caller may not see command, folders and environment, which are empty then. `stage`: of a workflow.
    `reservation`: the one that it names. `training`: what it trains, in words. Without `preemptible` it is not stopped
    for others.
    """

    job: JobRow
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
    hidden: bool = False
    cpus: float | None = None
    memory_mib: int = 0
    attempts: tuple[Attempt, ...] = ()
    stage: StageOf | None = None
    terminal: Terminal | None = None
    reservation: str = ""
    training: str = ""
    account: str = ""
    qos: str = ""
    comment: str = ""
    preemptible: bool = True
    gpu_use: GpuUsed | None = None


class JobPage(Shown, frozen=True):
    """Jobs, the latest first. `next` is the `before` of the next page; None where this is the last."""

    jobs: list[JobRow]
    next: int | None


class WaitingRow(JobRow, frozen=True):
    """A job that waits. `place` is its place in the order of the profile, from 1; 0 where it is not in that order:
    its place is being emptied, another job has to end first, or it is held."""

    place: int = 0


class WaitingPage(Shown, frozen=True):
    """Jobs that wait, in the order in which they are tried, then those that are blocked or held; each says why it
    waits. `total` counts all of them. `next` is the `after` of the next page; None where this is the last."""

    jobs: list[WaitingRow]
    total: int
    next: int | None


class PausedQueues(Shown, frozen=True):
    """Queues in which nothing starts for now; with `all` in none."""

    queues: list[str]
    all: bool


class ReservationRow(Shown, frozen=True):
    """GPUs that `user` has booked from `start` to before `end`, microseconds since the Unix epoch.

    `phase` is pending or active. `place` has the indices of its GPUs by node, `jobs` those that run in it. `queues`:
    whose jobs may name it; of any where there is none.
    """

    name: str
    user: str
    phase: str
    gpus: int
    start: int
    end: int
    within: str
    model: str
    queues: tuple[str, ...]
    place: dict[str, str]
    jobs: list[str]


class Reservations(Shown, frozen=True):
    """Reservations that are not over, in the order of their start."""

    reservations: list[ReservationRow]


class ReservationMade(Shown, frozen=True):
    """A new reservation, and the names of those that lie on other GPUs now, to make room for it."""

    reservation: ReservationRow
    moved: list[str]


class MachineJobs(Shown, frozen=True):
    """A machine that is to leave, or to stay, and the jobs that run on it."""

    machine: str
    jobs: list[str]


class JobIds(Shown, frozen=True):
    """The jobs that a request was about."""

    jobs: list[str]


class JobOutcome(Shown, frozen=True):
    """How a job has ended, or that it has not (`over`)."""

    id: str
    phase: str
    over: bool
    code: int | None
    signal: int | None
    reason: str


class Outcomes(Shown, frozen=True):
    """How the job, or those of the array, have ended. `over`: all of them."""

    jobs: list[JobOutcome]
    over: bool


class UsageRow(Shown, frozen=True, omit_defaults=True):
    """What jobs used that have ended, of one user, queue, account, day or job, where it was asked for by them.

    Times are seconds. `gpu_s` is GPUs times the length of the last run. A row of one job says besides how it ended and
    when (microseconds since the Unix epoch), and the most memory that one of its processes had.
    """

    jobs: int
    finished: int
    failed: int
    cancelled: int
    runs: int
    waited_s: float
    ran_s: float
    gpu_s: float
    user: str | None = None
    queue: str | None = None
    account: str | None = None
    day: str | None = None
    job: str | None = None
    name: str | None = None
    phase: str | None = None
    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    submitted: int = -1
    started: int = -1
    ended: int = -1
    rss_kib: int | None = None


class Usage(Shown, frozen=True):
    """What jobs used that ended between two times, in microseconds since the Unix epoch."""

    since_us: int
    until_us: int
    rows: list[UsageRow]


class ServiceHealth(Shown, frozen=True):
    """Whether Kant can write (`trouble` says why not), what it has, its clock, and its journal ("": not written).

    `complaint`: why a changed file of profile or queues was not taken. `starting`: kernels still compile.
    """

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
    journal: str
    complaint: str = ""
    starting: str = ""


class Whoami(Shown, frozen=True):
    """Who asks, as Kant sees it. `queues`: those of a tenant. `address` is where Kant listens ("": nowhere), with
    https:// before it where that is so.

    `may`: what they may ask and order, by the names (`operationId`) of the routes of this schema. `page`: a token for
    their page, where they have asked for one.
    """

    user: str
    role: str
    queues: tuple[str, ...]
    address: str
    may: tuple[str, ...] = ()
    page: str = ""


class AuditEntry(Shown, frozen=True):
    """What somebody did, or was `refused` ("": it was done). `who` also says from where; `time` is that of the jobs."""

    seq: int
    time: int
    who: str
    user: str
    role: str
    verb: str
    what: str
    refused: str


class AuditLog(Shown, frozen=True):
    """The audit log, the latest first. `next` is the `before` of the next page; None where this is the last."""

    deeds: list[AuditEntry]
    next: int | None


class Operations(Shown, frozen=True):
    """Entries of the audit of `kant ops` (docs/ops.md), the latest first: plans with their effects, what was done."""

    entries: list[dict[str, Any]]


class Failure(Shown, frozen=True):
    """What was wrong, in one sentence."""

    error: str


class Why(Shown, frozen=True):
    """Why a job waits, or where it stands: see docs/why.md for what an `answer` has.

    `waited_us` splits what it has waited: `total`, and the part of each cause. None where this is not known. `stage` is
    that of a workflow.
    """

    job: str
    phase: str
    sentence: str
    answer: dict[str, Any] | None
    waited_us: dict[str, int] | None
    stage: StageOf | None = None


class Entry(Shown, frozen=True):
    """Something that happened to a job or was decided about it; `what` is one word for its kind."""

    time_us: int
    what: str
    sentence: str


class History(Shown, frozen=True):
    """Times are on the clock of the run, whose zero is `zero_us` on that of the jobs.

    Without `whole` it is only what the store keeps of a job that ended long ago, or before Kant started.
    """

    job: str
    time_us: int
    zero_us: int
    entries: list[Entry]
    whole: bool


class RecordAnswer(Shown, frozen=True):
    """The jobs, holdings, nodes and samples that are new since a cursor; all that are kept, where it is `complete`.

    docs/record.md has its columns. Times are on the clock of the run, whose zero is `zero_us` on that of the jobs.
    """

    cursor: str
    complete: bool
    time_us: int
    zero_us: int
    profile: str
    cluster_name: str
    kind: str
    cluster: dict[str, Any] | None
    starts: list[int]
    queues: list[str]
    jobs: dict[str, list[Any]]
    intervals: dict[str, list[int]]
    nodes: dict[str, list[int]]
    series: dict[str, list[int]]
    summary: dict[str, Any]


class Futures(Shown, frozen=True):
    """Both futures beside each other: see docs/whatif.md for what each key has."""

    time_us: int
    zero_us: int
    change: list[str]
    run_times: dict[str, int]
    coming: int
    submitted: list[dict[str, Any]]
    waits: dict[str, Any]
    curve: dict[str, list[float]]
    helped: list[dict[str, Any]]
    harmed: list[dict[str, Any]]
    ratios: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]


class ProfileName(Shown, frozen=True):
    """A built-in profile, in one sentence."""

    name: str
    about: str


class Profiles(Shown, frozen=True):
    """The built-in profiles."""

    profiles: list[ProfileName]


class ClusterAnswer(Struct, frozen=True):
    """An answer about the cluster. `time_us` is now on the clock of the run, which its other times are on too; the zero
    of that clock is `zero_us` on that of the jobs."""

    time_us: int
    zero_us: int
