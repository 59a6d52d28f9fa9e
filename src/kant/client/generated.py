"""The types and routes of the service. Written by `python -m kant.client.generate`: change that, not this.

Long: it is generated, and no shorter than the document.
"""
# ruff: noqa: E501, RUF012
# fmt: off

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, Protocol, TypeVar, cast

from msgspec import UNSET, UnsetType

from kant.client.shown import Shown
from kant.model.submission import StageOf, Submission, Terminal

T = TypeVar("T")


class Attempt(Shown, kw_only=True, omit_defaults=True):
    """A run of a job. `ran_us`: how long it lasted, -1 while it does, or where nobody knows.

    `why` is `limit`, `memory` or `stopped` where it was ended. `cpu_us` is the time of cores that it took,
    `rss_kib` the most memory that one of its processes had, `dropped` the bytes of output for which there was
    no room.
    """

    number: int
    code: int | None = None
    signal: int | None = None
    why: str = ''
    ran_us: int = -1
    cpu_us: int = 0
    rss_kib: int = 0
    dropped: int = 0


class AuditEntry(Shown, kw_only=True, omit_defaults=True):
    """What somebody did, or was `refused` ("": it was done). `who` also says from where; `time` is that of the
    jobs.
    """

    seq: int
    time: int
    who: str
    user: str
    role: str
    verb: str
    what: str
    refused: str


class AuditLog(Shown, kw_only=True, omit_defaults=True):
    """The audit log, the latest first. `next` is the `before` of the next page; None where this is the last."""

    deeds: list[AuditEntry]
    next: int | None


class Batch(Shown, kw_only=True, omit_defaults=True):
    """Submissions that are queued together, or none of them. All have `env` beside their own."""

    lines: list[BatchLine]
    env: dict[str, str] = {}


class BatchLine(Shown, kw_only=True, omit_defaults=True):
    """A submission of a batch, and the number of the line where it stands: what is wrong with it is said of that."""

    job: Submission
    line: int = 0


class Entry(Shown, kw_only=True, omit_defaults=True):
    """Something that happened to a job or was decided about it; `what` is one word for its kind."""

    time_us: int
    what: str
    sentence: str


class Failure(Shown, kw_only=True, omit_defaults=True):
    """What was wrong, in one sentence."""

    error: str


class Futures(Shown, kw_only=True, omit_defaults=True):
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


class History(Shown, kw_only=True, omit_defaults=True):
    """Times are on the clock of the run, whose zero is `zero_us` on that of the jobs.

    Without `whole` it is only what the store keeps of a job that ended long ago, or before Kant started.
    """

    job: str
    time_us: int
    zero_us: int
    entries: list[Entry]
    whole: bool


class JobDetail(Shown, kw_only=True, omit_defaults=True):
    """A job with what was submitted (its environment by the names alone) and its place: node to GPU indices.

    `cpus` None: as by default. `attempts` has its runs, the last hundred of them.

    `hidden`: the caller may not see command, folders and environment, which are empty then. `stage`: of a
    workflow. `reservation`: the one that it names. `training`: what it trains, in words. Without `preemptible`
    it is not stopped for others.
    """

    job: JobRow
    command: list[str]
    workdir: str
    env: list[str]
    time_s: float | None
    retries: int
    after: list[str]
    after_ok: list[str]
    stopping: str
    place: dict[str, str]
    log: str
    hidden: bool = False
    cpus: float | None = None
    memory_mib: int = 0
    attempts: list[Attempt] = []
    stage: StageOf | None = None
    terminal: Terminal | None = None
    reservation: str = ''
    training: str = ''
    account: str = ''
    qos: str = ''
    comment: str = ''
    preemptible: bool = True


class JobIds(Shown, kw_only=True, omit_defaults=True):
    """The jobs that a request was about."""

    jobs: list[str]


class JobOutcome(Shown, kw_only=True, omit_defaults=True):
    """How a job has ended, or that it has not (`over`)."""

    id: str
    phase: str
    over: bool
    code: int | None
    signal: int | None
    reason: str


class JobPage(Shown, kw_only=True, omit_defaults=True):
    """Jobs, the latest first. `next` is the `before` of the next page; None where this is the last."""

    jobs: list[JobRow]
    next: int | None


class JobRow(Shown, kw_only=True, omit_defaults=True):
    """A job. Times are microseconds since the Unix epoch on Kant's clock, -1 for none.

    `array` is the `seq` of the first job of its array, -1 for none. `waits` says why a job waits, where that is
    known. `nodes` has the nodes on which it runs, each with the indices of its GPUs there, such as "0-3";
    `limit_us` is the longest that it may run, -1 for no limit.
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
    waits: str = ''
    nodes: dict[str, str] = {}
    limit_us: int = -1


class JobSignal(Shown, kw_only=True, omit_defaults=True):
    """A signal for the processes of a job that runs, by its name without SIG.

    Those in `FOR_HANDLERS` go to the processes that handle them, the others to all.
    """

    signal: Literal["CONT", "HUP", "INT", "KILL", "QUIT", "STOP", "TERM", "USR1", "USR2", "WINCH"]


class JobUpdate(Shown, kw_only=True, omit_defaults=True):
    """What is to be different of a job that waits; None: as it was. As in a `Submission`."""

    priority: int | None = None
    time_s: float | None = None
    queue: str | None = None
    name: str | None = None


class Outcomes(Shown, kw_only=True, omit_defaults=True):
    """How the job, or those of the array, have ended. `over`: all of them."""

    jobs: list[JobOutcome]
    over: bool


class ProfileName(Shown, kw_only=True, omit_defaults=True):
    """A built-in profile, in one sentence."""

    name: str
    about: str


class Profiles(Shown, kw_only=True, omit_defaults=True):
    """The built-in profiles."""

    profiles: list[ProfileName]


class Question(Shown, kw_only=True, omit_defaults=True):
    """The changes, in the words of the options of `kant whatif`; at least one.

    `submit`: jobs such as `gpus=8,time=4h`. `drain`: `NAME[@FROM[..UNTIL]]`, with `evict` stopping what runs
    there. `quota`: `QUEUE:gpu=+64`. `nodes`: `10` or `10xNAME`. `cancel`: jobs that are withdrawn at once.
    `profile`: a built-in one, "" for none other. `until`: when both futures stop, "" for never.
    """

    submit: list[str] = []
    drain: list[str] = []
    evict: bool = False
    quota: list[str] = []
    nodes: list[str] = []
    profile: str = ''
    until: str = ''
    cancel: list[str] = []


class RecordAnswer(Shown, kw_only=True, omit_defaults=True):
    """The jobs, holdings, nodes and samples that are new since a cursor; all that are kept, where it is
    `complete`.

    docs/record.md has its columns. Times are on the clock of the run, whose zero is `zero_us` on that of the
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


class ReservationMade(Shown, kw_only=True, omit_defaults=True):
    """A new reservation, and the names of those that lie on other GPUs now, to make room for it."""

    reservation: ReservationRow
    moved: list[str]


class ReservationRow(Shown, kw_only=True, omit_defaults=True):
    """GPUs that `user` has booked from `start` to before `end`, microseconds since the Unix epoch.

    `phase` is pending or active. `place` has the indices of its GPUs by node, `jobs` those that run in it.
    `queues`: whose jobs may name it; of any where there is none.
    """

    name: str
    user: str
    phase: str
    gpus: int
    start: int
    end: int
    within: str
    model: str
    queues: list[str]
    place: dict[str, str]
    jobs: list[str]


class ReservationWish(Shown, kw_only=True, omit_defaults=True):
    """`gpus` side by side for `duration_s` from `start` on (seconds since the Unix epoch; 0: now).

    They lie in one domain of the level `within`; with "" in one node if that is large enough, else anywhere
    along the cluster, and in whole nodes but for the last. `model` "": of any one GPU model. Jobs of these
    `queues`, and of those below them, may name it; of any where there is none.
    """

    name: str
    gpus: int
    duration_s: float
    start: float = 0.0
    within: Literal["", "cluster", "hbd", "leaf", "node", "spine", "superspine"] = ''
    model: str = ''
    queues: list[str] = []


class Reservations(Shown, kw_only=True, omit_defaults=True):
    """Reservations that are not over, in the order of their start."""

    reservations: list[ReservationRow]


class ServiceHealth(Shown, kw_only=True, omit_defaults=True):
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
    complaint: str = ''
    starting: str = ''


class Usage(Shown, kw_only=True, omit_defaults=True):
    """What jobs used that ended between two times, in microseconds since the Unix epoch."""

    since_us: int
    until_us: int
    rows: list[UsageRow]


class UsageRow(Shown, kw_only=True, omit_defaults=True):
    """What jobs used that have ended, of one user, queue, account, day or job, where it was asked for by them.

    Times are seconds. `gpu_s` is GPUs times the length of the last run.
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


class WaitingPage(Shown, kw_only=True, omit_defaults=True):
    """Jobs that wait, in the order in which they are tried, then those that are blocked or held; each says why it
    waits. `total` counts all of them. `next` is the `after` of the next page; None where this is the last.
    """

    jobs: list[WaitingRow]
    total: int
    next: int | None


class WaitingRow(Shown, kw_only=True, omit_defaults=True):
    """A job that waits. `place` is its place in the order of the profile, from 1; 0 where it is not in that order:
    its place is being emptied, another job has to end first, or it is held.
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
    waits: str = ''
    nodes: dict[str, str] = {}
    limit_us: int = -1
    place: int = 0


class Whoami(Shown, kw_only=True, omit_defaults=True):
    """Who asks, as Kant sees it. `queues`: those of a tenant. `address` is where Kant listens ("": nowhere), with
    https:// before it where that is so.

    `may`: what they may ask and order, by the names (`operationId`) of the routes of this schema. `page`: a
    token for their page, where they have asked for one.
    """

    user: str
    role: str
    queues: list[str]
    address: str
    may: list[str] = []
    page: str = ''


class Why(Shown, kw_only=True, omit_defaults=True):
    """Why a job waits, or where it stands: see docs/why.md for what an `answer` has.

    `waited_us` splits what it has waited: `total`, and the part of each cause. None where this is not known.
    `stage` is that of a workflow.
    """

    job: str
    phase: str
    sentence: str
    answer: dict[str, Any] | None
    waited_us: dict[str, int] | None
    stage: StageOf | None = None


class WorkflowStage(Shown, kw_only=True, omit_defaults=True):
    """A job of a workflow, no array. It waits for earlier stages, by their places in the list, from 0: for those
    of `after` to end, for those of `after_ok` to end well.
    """

    job: Submission
    after: list[int] = []
    after_ok: list[int] = []


class WorkflowSubmission(Shown, kw_only=True, omit_defaults=True):
    """The stages of a workflow, each after those that it waits for. All of them have `env` beside their own."""

    stages: list[WorkflowStage]
    env: dict[str, str] = {}


class Asks(Protocol):
    """What carries a question to a Kant, and makes its answer an object of `kind`."""

    def __call__(self, method: str, path: str, query: dict[str, Any], body: Any, kind: type[T]) -> T: ...


class Api:
    """Every route of the service. Each raises `InputError` with the sentence of a refusal."""

    def __init__(self, ask: Asks) -> None:
        self._ask = ask

    def submit(self, body: Submission) -> JobIds:
        """Queue a command."""
        return self._ask("POST", "/v1/jobs", {}, body, JobIds)

    def jobs(self, *, state: str | UnsetType = UNSET, queue: str | UnsetType = UNSET, user: str | UnsetType = UNSET, name: str | UnsetType = UNSET, before: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> JobPage:
        """Jobs, the latest first, a page at a time."""
        return self._ask("GET", "/v1/jobs", {"state": state, "queue": queue, "user": user, "name": name, "before": before, "limit": limit}, None, JobPage)

    def workflow(self, body: WorkflowSubmission) -> JobIds:
        """Queue all stages of a workflow, or none."""
        return self._ask("POST", "/v1/workflows", {}, body, JobIds)

    def batch(self, body: Batch) -> JobIds:
        """Queue many commands, or none."""
        return self._ask("POST", "/v1/batches", {}, body, JobIds)

    def waiting(self, *, queue: str | UnsetType = UNSET, user: str | UnsetType = UNSET, name: str | UnsetType = UNSET, after: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> WaitingPage:
        """Jobs that wait, first in the queue's order first, each with its reason."""
        return self._ask("GET", "/v1/waiting", {"queue": queue, "user": user, "name": name, "after": after, "limit": limit}, None, WaitingPage)

    def job(self, job: str) -> JobDetail:
        """One job, whole."""
        return self._ask("GET", f"/v1/jobs/{job}", {}, None, JobDetail)

    def cancel(self, job: str) -> JobIds:
        """Withdraw a job or an array."""
        return self._ask("POST", f"/v1/jobs/{job}/cancel", {}, None, JobIds)

    def hold(self, job: str) -> JobIds:
        """Keep a waiting job from starting."""
        return self._ask("POST", f"/v1/jobs/{job}/hold", {}, None, JobIds)

    def release(self, job: str) -> JobIds:
        """Let a held job start."""
        return self._ask("POST", f"/v1/jobs/{job}/release", {}, None, JobIds)

    def requeue(self, job: str) -> JobIds:
        """Stop the run of a job, which then waits again."""
        return self._ask("POST", f"/v1/jobs/{job}/requeue", {}, None, JobIds)

    def update(self, job: str, body: JobUpdate) -> JobIds:
        """Change what a waiting job asks for."""
        return self._ask("POST", f"/v1/jobs/{job}/update", {}, body, JobIds)

    def signal(self, job: str, body: JobSignal) -> JobIds:
        """Send a signal to a job that runs."""
        return self._ask("POST", f"/v1/jobs/{job}/signal", {}, body, JobIds)

    def reserve(self, body: ReservationWish) -> ReservationMade:
        """Book GPUs for a window of time."""
        return self._ask("POST", "/v1/reservations", {}, body, ReservationMade)

    def reservations(self) -> Reservations:
        """What is booked and not over."""
        return self._ask("GET", "/v1/reservations", {}, None, Reservations)

    def unreserve(self, reservation: str) -> Reservations:
        """Take a reservation back in which no job runs."""
        return self._ask("POST", f"/v1/reservations/{reservation}/cancel", {}, None, Reservations)

    def outcome(self, job: str, *, wait: int | UnsetType = UNSET) -> Outcomes:
        """How a job, or those of an array, have ended."""
        return self._ask("GET", f"/v1/jobs/{job}/outcome", {"wait": wait}, None, Outcomes)

    def usage(self, *, by: str | UnsetType = UNSET, since: int | UnsetType = UNSET, until: int | UnsetType = UNSET, user: str | UnsetType = UNSET, queue: str | UnsetType = UNSET) -> Usage:
        """What the jobs used that have ended, by user, queue, account, day or job."""
        return self._ask("GET", "/v1/usage", {"by": by, "since": since, "until": until, "user": user, "queue": queue}, None, Usage)

    def why(self, job: str) -> Why:
        """Why a job waits."""
        return self._ask("GET", f"/v1/jobs/{job}/why", {}, None, Why)

    def log(self, job: str, *, offset: int | UnsetType = UNSET, limit: int | UnsetType = UNSET, follow: bool | UnsetType = UNSET, attempt: int | UnsetType = UNSET) -> bytes:
        """What a run has written, from X-Kant-Offset on."""
        return self._ask("GET", f"/v1/jobs/{job}/log", {"offset": offset, "limit": limit, "follow": follow, "attempt": attempt}, None, bytes)

    def history(self, job: str) -> History:
        """What happened to a job, and what was decided."""
        return self._ask("GET", f"/v1/jobs/{job}/history", {}, None, History)

    def record(self, *, since: str | UnsetType = UNSET) -> RecordAnswer:
        """What the page shows, or what is new of it (docs/record.md)."""
        return self._ask("GET", "/v1/record", {"since": since}, None, RecordAnswer)

    def queues(self) -> dict[str, Any]:
        """Queues, quotas and what they use."""
        return cast("dict[str, Any]", self._ask("GET", "/v1/queues", {}, None, dict))

    def eta(self, *, job: str | UnsetType = UNSET) -> dict[str, Any]:
        """When the waiting jobs (or one) are expected to start."""
        return cast("dict[str, Any]", self._ask("GET", "/v1/eta", {"job": job}, None, dict))

    def whatif(self, body: Question) -> Futures:
        """What a change would do to everybody's waits."""
        return self._ask("POST", "/v1/whatif", {}, body, Futures)

    def profiles(self) -> Profiles:
        """The built-in profiles."""
        return self._ask("GET", "/v1/profiles", {}, None, Profiles)

    def top(self) -> dict[str, Any]:
        """What pools and nodes hold, and the largest jobs."""
        return cast("dict[str, Any]", self._ask("GET", "/v1/top", {}, None, dict))

    def status(self, *, optimality: bool | UnsetType = UNSET) -> dict[str, Any]:
        """What the cluster has and runs, and how far that is from the best."""
        return cast("dict[str, Any]", self._ask("GET", "/v1/status", {"optimality": optimality}, None, dict))

    def health(self) -> ServiceHealth:
        """Whether Kant can write, and what it has."""
        return self._ask("GET", "/v1/health", {}, None, ServiceHealth)

    def whoami(self, *, page: Literal["same", "new"] | UnsetType = UNSET) -> Whoami:
        """Who asks, and with which role."""
        return self._ask("GET", "/v1/whoami", {"page": page}, None, Whoami)

    def audit(self, *, user: str | UnsetType = UNSET, refused: bool | UnsetType = UNSET, before: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> AuditLog:
        """Who did what or was refused it, the latest first, a page at a time."""
        return self._ask("GET", "/v1/audit", {"user": user, "refused": refused, "before": before, "limit": limit}, None, AuditLog)

    def stop(self) -> ServiceHealth:
        """Stop Kant; what runs runs on."""
        return self._ask("POST", "/v1/stop", {}, None, ServiceHealth)

    def metrics(self) -> str:
        """What Prometheus asks for (docs/up.md)."""
        return self._ask("GET", "/metrics", {}, None, str)

    def schema(self) -> dict[str, Any]:
        """This schema."""
        return cast("dict[str, Any]", self._ask("GET", "/v1/openapi.json", {}, None, dict))


class AsksLater(Protocol):
    """As `Asks`, for those who await the answer."""

    def __call__(self, method: str, path: str, query: dict[str, Any], body: Any, kind: type[T]) -> Awaitable[T]: ...


class AsyncApi:
    """Every route of the service, to be awaited. Each raises `InputError` with the sentence of a refusal."""

    def __init__(self, ask: AsksLater) -> None:
        self._ask = ask

    async def submit(self, body: Submission) -> JobIds:
        """Queue a command."""
        return await self._ask("POST", "/v1/jobs", {}, body, JobIds)

    async def jobs(self, *, state: str | UnsetType = UNSET, queue: str | UnsetType = UNSET, user: str | UnsetType = UNSET, name: str | UnsetType = UNSET, before: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> JobPage:
        """Jobs, the latest first, a page at a time."""
        return await self._ask("GET", "/v1/jobs", {"state": state, "queue": queue, "user": user, "name": name, "before": before, "limit": limit}, None, JobPage)

    async def workflow(self, body: WorkflowSubmission) -> JobIds:
        """Queue all stages of a workflow, or none."""
        return await self._ask("POST", "/v1/workflows", {}, body, JobIds)

    async def batch(self, body: Batch) -> JobIds:
        """Queue many commands, or none."""
        return await self._ask("POST", "/v1/batches", {}, body, JobIds)

    async def waiting(self, *, queue: str | UnsetType = UNSET, user: str | UnsetType = UNSET, name: str | UnsetType = UNSET, after: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> WaitingPage:
        """Jobs that wait, first in the queue's order first, each with its reason."""
        return await self._ask("GET", "/v1/waiting", {"queue": queue, "user": user, "name": name, "after": after, "limit": limit}, None, WaitingPage)

    async def job(self, job: str) -> JobDetail:
        """One job, whole."""
        return await self._ask("GET", f"/v1/jobs/{job}", {}, None, JobDetail)

    async def cancel(self, job: str) -> JobIds:
        """Withdraw a job or an array."""
        return await self._ask("POST", f"/v1/jobs/{job}/cancel", {}, None, JobIds)

    async def hold(self, job: str) -> JobIds:
        """Keep a waiting job from starting."""
        return await self._ask("POST", f"/v1/jobs/{job}/hold", {}, None, JobIds)

    async def release(self, job: str) -> JobIds:
        """Let a held job start."""
        return await self._ask("POST", f"/v1/jobs/{job}/release", {}, None, JobIds)

    async def requeue(self, job: str) -> JobIds:
        """Stop the run of a job, which then waits again."""
        return await self._ask("POST", f"/v1/jobs/{job}/requeue", {}, None, JobIds)

    async def update(self, job: str, body: JobUpdate) -> JobIds:
        """Change what a waiting job asks for."""
        return await self._ask("POST", f"/v1/jobs/{job}/update", {}, body, JobIds)

    async def signal(self, job: str, body: JobSignal) -> JobIds:
        """Send a signal to a job that runs."""
        return await self._ask("POST", f"/v1/jobs/{job}/signal", {}, body, JobIds)

    async def reserve(self, body: ReservationWish) -> ReservationMade:
        """Book GPUs for a window of time."""
        return await self._ask("POST", "/v1/reservations", {}, body, ReservationMade)

    async def reservations(self) -> Reservations:
        """What is booked and not over."""
        return await self._ask("GET", "/v1/reservations", {}, None, Reservations)

    async def unreserve(self, reservation: str) -> Reservations:
        """Take a reservation back in which no job runs."""
        return await self._ask("POST", f"/v1/reservations/{reservation}/cancel", {}, None, Reservations)

    async def outcome(self, job: str, *, wait: int | UnsetType = UNSET) -> Outcomes:
        """How a job, or those of an array, have ended."""
        return await self._ask("GET", f"/v1/jobs/{job}/outcome", {"wait": wait}, None, Outcomes)

    async def usage(self, *, by: str | UnsetType = UNSET, since: int | UnsetType = UNSET, until: int | UnsetType = UNSET, user: str | UnsetType = UNSET, queue: str | UnsetType = UNSET) -> Usage:
        """What the jobs used that have ended, by user, queue, account, day or job."""
        return await self._ask("GET", "/v1/usage", {"by": by, "since": since, "until": until, "user": user, "queue": queue}, None, Usage)

    async def why(self, job: str) -> Why:
        """Why a job waits."""
        return await self._ask("GET", f"/v1/jobs/{job}/why", {}, None, Why)

    async def log(self, job: str, *, offset: int | UnsetType = UNSET, limit: int | UnsetType = UNSET, follow: bool | UnsetType = UNSET, attempt: int | UnsetType = UNSET) -> bytes:
        """What a run has written, from X-Kant-Offset on."""
        return await self._ask("GET", f"/v1/jobs/{job}/log", {"offset": offset, "limit": limit, "follow": follow, "attempt": attempt}, None, bytes)

    async def history(self, job: str) -> History:
        """What happened to a job, and what was decided."""
        return await self._ask("GET", f"/v1/jobs/{job}/history", {}, None, History)

    async def record(self, *, since: str | UnsetType = UNSET) -> RecordAnswer:
        """What the page shows, or what is new of it (docs/record.md)."""
        return await self._ask("GET", "/v1/record", {"since": since}, None, RecordAnswer)

    async def queues(self) -> dict[str, Any]:
        """Queues, quotas and what they use."""
        return cast("dict[str, Any]", await self._ask("GET", "/v1/queues", {}, None, dict))

    async def eta(self, *, job: str | UnsetType = UNSET) -> dict[str, Any]:
        """When the waiting jobs (or one) are expected to start."""
        return cast("dict[str, Any]", await self._ask("GET", "/v1/eta", {"job": job}, None, dict))

    async def whatif(self, body: Question) -> Futures:
        """What a change would do to everybody's waits."""
        return await self._ask("POST", "/v1/whatif", {}, body, Futures)

    async def profiles(self) -> Profiles:
        """The built-in profiles."""
        return await self._ask("GET", "/v1/profiles", {}, None, Profiles)

    async def top(self) -> dict[str, Any]:
        """What pools and nodes hold, and the largest jobs."""
        return cast("dict[str, Any]", await self._ask("GET", "/v1/top", {}, None, dict))

    async def status(self, *, optimality: bool | UnsetType = UNSET) -> dict[str, Any]:
        """What the cluster has and runs, and how far that is from the best."""
        return cast("dict[str, Any]", await self._ask("GET", "/v1/status", {"optimality": optimality}, None, dict))

    async def health(self) -> ServiceHealth:
        """Whether Kant can write, and what it has."""
        return await self._ask("GET", "/v1/health", {}, None, ServiceHealth)

    async def whoami(self, *, page: Literal["same", "new"] | UnsetType = UNSET) -> Whoami:
        """Who asks, and with which role."""
        return await self._ask("GET", "/v1/whoami", {"page": page}, None, Whoami)

    async def audit(self, *, user: str | UnsetType = UNSET, refused: bool | UnsetType = UNSET, before: int | UnsetType = UNSET, limit: int | UnsetType = UNSET) -> AuditLog:
        """Who did what or was refused it, the latest first, a page at a time."""
        return await self._ask("GET", "/v1/audit", {"user": user, "refused": refused, "before": before, "limit": limit}, None, AuditLog)

    async def stop(self) -> ServiceHealth:
        """Stop Kant; what runs runs on."""
        return await self._ask("POST", "/v1/stop", {}, None, ServiceHealth)

    async def metrics(self) -> str:
        """What Prometheus asks for (docs/up.md)."""
        return await self._ask("GET", "/metrics", {}, None, str)

    async def schema(self) -> dict[str, Any]:
        """This schema."""
        return cast("dict[str, Any]", await self._ask("GET", "/v1/openapi.json", {}, None, dict))
