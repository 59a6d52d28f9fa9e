"""The types of the API's requests and responses, from which the schema is made."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from kant.model.submission import StageOf, Terminal
from kant.service.shown import Shown


class JobRow(Shown, frozen=True):
    """A job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `array` is the `seq` of the first job of its array, -1 for none. `waits` says why a job waits, if known. `nodes` has
    the nodes on which it runs, each with the indices of its GPUs there, such as "0-3"; `limit_us` is its time limit, -1
    for none.
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
    """A run of a job. `ran_us`: its duration, -1 while it runs or if it is unknown.

    `why` is `limit`, `memory` or `stopped` if it was ended. `cpu_us` is the CPU time that it used, `rss_kib` the peak
    memory of one of its processes, `dropped` the bytes of output that were lost for lack of room.
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
    """The GPU use of a running job: the share of time in which its GPUs were busy, recently and since it started; MiB
    of their memory in use, the peak, and the total. `warning`: they idle, and the consequence.
    """

    busy: float
    busy_mean: float
    memory_mib: int
    peak_mib: int
    total_mib: int
    warning: str = ""


class JobDetail(Shown, frozen=True):
    """A job as submitted (of its environment, only the names), and its place: GPU indices by node.

    `cpus` None: the default. `attempts` has its runs, at most the last hundred. `hidden`: the caller may not see
    command, folders and environment, which are then empty. `stage`: its stage of a workflow. `reservation`: the one
    that it uses. `training`: the model that it trains, as text. Without `preemptible` it is not stopped for other jobs.
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
    """Jobs, the latest first. `next` is the `before` of the next page; None on the last page."""

    jobs: list[JobRow]
    next: int | None


class WaitingRow(JobRow, frozen=True):
    """A waiting job. `place` is its position in the order of the profile, from 1. It is 0 if the job is not in that
    order: its place is being freed, another job has to end first, or it is held.
    """

    place: int = 0


class WaitingPage(Shown, frozen=True):
    """Waiting jobs in the order in which they are tried, then blocked and held ones, each with its reason. `total`
    counts all of them. `next` is the `after` of the next page; None on the last page.
    """

    jobs: list[WaitingRow]
    total: int
    next: int | None


class PausedQueues(Shown, frozen=True):
    """Queues in which nothing starts for now; with `all` every queue."""

    queues: list[str]
    all: bool


class ReservationRow(Shown, frozen=True):
    """GPUs that `user` has booked from `start` until `end` (exclusive), microseconds since the Unix epoch.

    `phase` is pending or active. `place` has the indices of its GPUs by node, `jobs` the jobs that run in it. Jobs of
    these `queues` may use it; jobs of any queue if empty.
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
    """Reservations that have not ended, in the order of their start."""

    reservations: list[ReservationRow]


class ReservationMade(Shown, frozen=True):
    """A new reservation, and the names of the reservations that were moved to other GPUs to make room for it."""

    reservation: ReservationRow
    moved: list[str]


class MachineJobs(Shown, frozen=True):
    """A machine that leaves or stays, and the jobs that run on it."""

    machine: str
    jobs: list[str]


class JobIds(Shown, frozen=True):
    """The jobs that a request was about."""

    jobs: list[str]


class JobOutcome(Shown, frozen=True):
    """How a job has ended; `over` is false if it has not ended."""

    id: str
    phase: str
    over: bool
    code: int | None
    signal: int | None
    reason: str


class Outcomes(Shown, frozen=True):
    """How the job, or the jobs of the array, have ended. `over`: all of them have."""

    jobs: list[JobOutcome]
    over: bool


class UsageRow(Shown, frozen=True, omit_defaults=True):
    """What the ended jobs of one user, queue, account, day or job used; the grouping decides which.

    Times are seconds. `gpu_s` is GPUs times the length of the last run. A row of one job also has its outcome, its end
    (microseconds since the Unix epoch), and the peak memory of one of its processes.
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
    """What the jobs used that ended between two times, in microseconds since the Unix epoch."""

    since_us: int
    until_us: int
    rows: list[UsageRow]


class ServiceHealth(Shown, frozen=True):
    """Whether Kant can write (if not, `trouble` is the reason), the size of its cluster, its clock, and its journal
    ("": not written).

    `complaint`: why a changed profile or queue file was rejected. `starting`: kernels are still compiling. `here`: the
    hardware of this machine, in a sentence ("": the cluster is virtual).
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
    here: str = ""


class Whoami(Shown, frozen=True):
    """The caller, as Kant sees it. `queues`: the queues of a tenant. `address` is where Kant listens ("": nowhere),
    with the prefix https:// if it uses TLS.

    `may`: what the caller may request, by the names (`operationId`) of the routes of this schema. `page`: a token for
    the caller's page, if requested. `home`: the home folder of the user as whom the caller's jobs run ("": not known).
    """

    user: str
    role: str
    queues: tuple[str, ...]
    address: str
    may: tuple[str, ...] = ()
    page: str = ""
    home: str = ""


class AuditEntry(Shown, frozen=True):
    """An action of a caller. `refused` says why it was refused ("": it was done). `who` also has the origin of the
    request; `time` is on the clock of the jobs.
    """

    seq: int
    time: int
    who: str
    user: str
    role: str
    verb: str
    what: str
    refused: str


class AuditLog(Shown, frozen=True):
    """The audit log, the latest first. `next` is the `before` of the next page; None on the last page."""

    deeds: list[AuditEntry]
    next: int | None


class Operations(Shown, frozen=True):
    """Entries of the audit of `kant ops` (docs/ops.md), the latest first: plans with their effects, and applied
    changes."""

    entries: list[dict[str, Any]]


class Failure(Shown, frozen=True):
    """The error, in one sentence."""

    error: str


class Why(Shown, frozen=True):
    """Why a job waits, or its place in the queue: docs/why.md describes an `answer`.

    `waited_us` splits the time that it has waited: `total`, and the part of each cause. None if unknown. `stage` is its
    stage of a workflow.
    """

    job: str
    phase: str
    sentence: str
    answer: dict[str, Any] | None
    waited_us: dict[str, int] | None
    stage: StageOf | None = None


class Entry(Shown, frozen=True):
    """An event of a job or a decision about it; `what` is one word for its kind."""

    time_us: int
    what: str
    sentence: str


class History(Shown, frozen=True):
    """Events of a job. Times are on the clock of the run; its zero is at `zero_us` on the clock of the jobs.

    If not `whole`, it has only the stored part, since the job ended long ago or before Kant started.
    """

    job: str
    time_us: int
    zero_us: int
    entries: list[Entry]
    whole: bool


class RecordAnswer(Shown, frozen=True):
    """The jobs, holdings, nodes and samples that are new since a cursor; if `complete`, all that are kept.

    docs/record.md has its columns. Times are on the clock of the run; its zero is at `zero_us` on the clock of the
    jobs.
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
    """The futures with and without a change: docs/whatif.md describes each key."""

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
    """A built-in profile, with a one-sentence description."""

    name: str
    about: str


class Profiles(Shown, frozen=True):
    """The built-in profiles."""

    profiles: list[ProfileName]


class ClusterAnswer(Struct, frozen=True):
    """An answer about the cluster. `time_us` is the present. All times are on the clock of the run; its zero is at
    `zero_us` on the clock of the jobs.
    """

    time_us: int
    zero_us: int
