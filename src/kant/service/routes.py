"""The routes under /v1: one table for the server, the schema and the client."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from kant.local.record import (
    Batch,
    JobPhase,
    JobSignal,
    JobUpdate,
    MachineLeaves,
    QueueNames,
    ReservationRequest,
    WorkflowSubmission,
)
from kant.model.submission import Submission
from kant.service.route import Route, get, post
from kant.service.views import (
    AuditLog,
    ClusterAnswer,
    Futures,
    History,
    JobDetail,
    JobIds,
    JobPage,
    MachineJobs,
    Operations,
    Outcomes,
    PausedQueues,
    Profiles,
    RecordAnswer,
    ReservationMade,
    Reservations,
    ServiceHealth,
    Usage,
    WaitingPage,
    Whoami,
    Why,
)
from kant.sim.question import Question

Limit = Annotated[int, Meta(ge=1, le=1000)]
Rows = Annotated[int, Meta(ge=0, le=9999, description="Of the window; 0: as it was.")]
Columns = Annotated[int, Meta(ge=0, le=9999, description="Likewise.")]
States = Annotated[str, Meta(description=f"Some of {', '.join(JobPhase)}, divided by commas.")]
Name = Annotated[str, Meta(description="Of this name; * and ? stand for others.")]
Before = Annotated[int, Meta(ge=0, description="`next` of the page before.")]
By = Annotated[str, Meta(description="Some of user, queue, account, day, job, divided by commas.")]
Since = Annotated[int, Meta(ge=0, description="Microseconds of the Unix epoch.")]
Until = Annotated[int, Meta(ge=0, description="Likewise; by default now.")]
Wait = Annotated[int, Meta(ge=0, le=60, description="Seconds to wait until all of them are over.")]
Offset = Annotated[int, Meta(description="Bytes from the beginning; if negative, from the end.")]
ShownFrom = Annotated[int, Meta(description="Show output from here on; if negative, so much before the end.")]
Follow = Annotated[bool, Meta(description="Until the job is over.")]
Run = Annotated[int, Meta(ge=0, description="Of this run; 0: the last.")]
Pty = Annotated[bool, Meta(description="With a terminal, not with pipes.")]
Node = Annotated[str, Meta(max_length=256, description="Of a job on several machines, the one on which.")]
Term = Annotated[str, Meta(max_length=64, description="The kind of terminal, as TERM says it.")]
Cursor = Annotated[str, Meta(description="`cursor` of the answer before.")]
Page = Annotated[
    Literal["same", "new"],
    Meta(description="With a token for the page of a user of this machine, over the socket."),
]


class Routes:
    """Every route of the service that has an answer. Each raises `InputError` with the sentence of a refusal."""

    @post("/v1/jobs", status=201)
    def submit(self, body: Submission) -> JobIds:
        """Queue a command."""

    @post("/v1/workflows", status=201)
    def workflow(self, body: WorkflowSubmission) -> JobIds:
        """Queue all stages of a workflow, or none."""

    @post("/v1/batches", status=201)
    def batch(self, body: Batch) -> JobIds:
        """Queue many commands, or none."""

    @get("/v1/jobs")
    def jobs(
        self,
        *,
        state: States | None = None,
        queue: str | None = None,
        user: str | None = None,
        name: Name | None = None,
        before: Before | None = None,
        limit: Limit = 100,
    ) -> JobPage:
        """Jobs, the latest first, a page at a time."""

    @get("/v1/waiting")
    def waiting(
        self,
        *,
        queue: str | None = None,
        user: str | None = None,
        name: Name | None = None,
        after: Before = 0,
        limit: Annotated[int, Meta(ge=1, le=100)] = 50,
    ) -> WaitingPage:
        """Jobs that wait, first in the queue's order first, each with its reason."""

    @get("/v1/jobs/{job}")
    def job(self, job: str) -> JobDetail:
        """One job, whole."""

    @post("/v1/jobs/{job}/cancel")
    def cancel(self, job: str) -> JobIds:
        """Withdraw a job or an array."""

    @post("/v1/jobs/{job}/hold")
    def hold(self, job: str) -> JobIds:
        """Keep a waiting job from starting."""

    @post("/v1/jobs/{job}/release")
    def release(self, job: str) -> JobIds:
        """Let a held job start."""

    @post("/v1/jobs/{job}/requeue")
    def requeue(self, job: str) -> JobIds:
        """Stop the run of a job, which then waits again."""

    @post("/v1/jobs/{job}/update")
    def update(self, job: str, body: JobUpdate) -> JobIds:
        """Change what a waiting job asks for, or the limit of one that runs."""

    @post("/v1/jobs/{job}/signal")
    def signal(self, job: str, body: JobSignal) -> JobIds:
        """Send a signal to a job that runs."""

    @post("/v1/reservations", status=201)
    def reserve(self, body: ReservationRequest) -> ReservationMade:
        """Book GPUs for a window of time."""

    @get("/v1/reservations")
    def reservations(self) -> Reservations:
        """What is booked and not over."""

    @post("/v1/reservations/{reservation}/cancel")
    def unreserve(self, reservation: str) -> Reservations:
        """Take a reservation back in which no job runs."""

    @get("/v1/jobs/{job}/outcome")
    def outcome(self, job: str, *, wait: Wait = 0) -> Outcomes:
        """How a job, or those of an array, have ended."""

    @get("/v1/usage")
    def usage(
        self,
        *,
        by: By = "",
        since: Since = 0,
        until: Until | None = None,
        user: str | None = None,
        queue: str | None = None,
    ) -> Usage:
        """What the jobs used that have ended, by user, queue, account, day or job."""

    @get("/v1/jobs/{job}/why")
    def why(self, job: str) -> Why:
        """Why a job waits."""

    @get("/v1/jobs/{job}/log")
    def log(
        self,
        job: str,
        *,
        offset: Offset = 0,
        limit: Annotated[int, Meta(ge=1, le=1 << 24)] = 1 << 20,
        follow: Follow = False,
        attempt: Run = 0,
    ) -> bytes:
        """What a run has written, from X-Kant-Offset on."""

    @get("/v1/jobs/{job}/history")
    def history(self, job: str) -> History:
        """What happened to a job, and what was decided."""

    @get("/v1/record")
    def record(self, *, since: Cursor = "") -> RecordAnswer:
        """What the page shows, or what is new of it (docs/record.md)."""

    @get("/v1/queues", ClusterAnswer)
    def queues(self) -> dict[str, Any]:
        """Queues, quotas and what they use."""

    @post("/v1/queues/pause")
    def pause(self, body: QueueNames) -> PausedQueues:
        """Let nothing start in these queues, or in any; what runs runs on."""

    @post("/v1/queues/resume")
    def resume(self, body: QueueNames) -> PausedQueues:
        """Let jobs start again in these queues, or in all."""

    @post("/v1/machines/{machine}/leave")
    def leave(self, machine: str, body: MachineLeaves) -> MachineJobs:
        """Let nothing start on a machine that has joined, and let it go once nothing runs there."""

    @get("/v1/eta", ClusterAnswer)
    def eta(self, *, job: str | None = None) -> dict[str, Any]:
        """When the waiting jobs (or one) are expected to start."""

    @post("/v1/whatif")
    def whatif(self, body: Question) -> Futures:
        """What a change would do to everybody's waits."""

    @get("/v1/profiles")
    def profiles(self) -> Profiles:
        """The built-in profiles."""

    @post("/v1/eta", answers=ClusterAnswer)
    def trial(self, body: Submission) -> dict[str, Any]:
        """When a job would start if it were submitted now. It is not submitted, and other jobs are not named."""

    @get("/v1/top", ClusterAnswer)
    def top(self) -> dict[str, Any]:
        """What pools and nodes hold, and the largest jobs."""

    @get("/v1/status", ClusterAnswer)
    def status(self, *, optimality: bool = False) -> dict[str, Any]:
        """What the cluster has and runs, and how far that is from the best."""

    @get("/v1/health")
    def health(self) -> ServiceHealth:
        """Whether Kant can write, and what it has."""

    @get("/v1/whoami")
    def whoami(self, *, page: Page | None = None) -> Whoami:
        """Who asks, and with which role."""

    @get("/v1/audit")
    def audit(
        self, *, user: str | None = None, refused: bool = False, before: Before | None = None, limit: Limit = 100
    ) -> AuditLog:
        """Who did what or was refused it, the latest first, a page at a time."""

    @get("/v1/operations")
    def operations(self) -> Operations:
        """The latest plans of `kant ops` and of assistants, and what became of them."""

    @post("/v1/stop")
    def stop(self) -> ServiceHealth:
        """Stop Kant; what runs runs on."""

    @get("/metrics")
    def metrics(self) -> str:
        """What Prometheus asks for (docs/up.md)."""

    @get("/v1/openapi.json")
    def schema(self) -> dict[str, Any]:
        """This schema."""


class Streams:
    """The routes whose answer has no end."""

    @get("/v1/jobs/{job}/attach", status=101)
    def attach(self, job: str, *, rows: Rows = 0, columns: Columns = 0, offset: ShownFrom = 0) -> None:
        """A WebSocket: the terminal of a job that waits or runs (docs/up.md)."""

    @get("/v1/jobs/{job}/shell", status=101)
    def shell(
        self, job: str, *, rows: Rows = 0, columns: Columns = 0, pty: Pty = True, term: Term | None = None,
        node: Node | None = None,
    ) -> None:  # fmt: skip
        """A WebSocket: a command beside a job that runs (docs/up.md)."""

    @get("/v1/events", media="text/event-stream")
    def events(self) -> None:
        """Changes of jobs as server-sent events."""


ROUTES: tuple[Route[..., Any], ...] = tuple(
    each for table in (Routes, Streams) for each in vars(table).values() if isinstance(each, Route)
)
