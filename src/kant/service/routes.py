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
from kant.service.route import ApiRoute, get, post
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
Rows = Annotated[int, Meta(ge=0, le=9999, description="Rows of the window; 0: unchanged.")]
Columns = Annotated[int, Meta(ge=0, le=9999, description="Columns of the window; 0: unchanged.")]
States = Annotated[str, Meta(description=f"Any of {', '.join(JobPhase)}, separated by commas.")]
Name = Annotated[str, Meta(description="The name; * and ? are wildcards.")]
Mine = Annotated[bool, Meta(description="Only jobs of the caller, and those in the caller's queues.")]
Before = Annotated[int, Meta(ge=0, description="`next` of the previous page.")]
By = Annotated[str, Meta(description="Any of user, queue, account, day, job, separated by commas.")]
Since = Annotated[int, Meta(ge=0, description="Microseconds since the Unix epoch.")]
Until = Annotated[int, Meta(ge=0, description="Microseconds since the Unix epoch; default: now.")]
Wait = Annotated[int, Meta(ge=0, le=60, description="Seconds to wait until all of them have ended.")]
Offset = Annotated[int, Meta(description="The offset in bytes; if negative, from the end.")]
ShownFrom = Annotated[int, Meta(description="The offset of the first output, in bytes; if negative, from the end.")]
Follow = Annotated[bool, Meta(description="Send output until the job has ended.")]
Run = Annotated[int, Meta(ge=0, description="The number of the run; 0: the last.")]
Pty = Annotated[bool, Meta(description="Use a terminal, not pipes.")]
Node = Annotated[str, Meta(max_length=256, description="For a job on several machines: the machine.")]
Term = Annotated[str, Meta(max_length=64, description="The value of TERM.")]
Cursor = Annotated[str, Meta(description="`cursor` of the previous answer.")]
Page = Annotated[
    Literal["same", "new"],
    Meta(description="Also return a token for the page, over the socket: the current one, or a new one."),
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
        mine: Mine = False,
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
        mine: Mine = False,
        after: Before = 0,
        limit: Annotated[int, Meta(ge=1, le=100)] = 50,
    ) -> WaitingPage:
        """Waiting jobs in the order of the queue, each with its reason."""

    @get("/v1/jobs/{job}")
    def job(self, job: str) -> JobDetail:
        """All about one job."""

    @post("/v1/jobs/{job}/cancel")
    def cancel(self, job: str) -> JobIds:
        """Cancel a job or an array."""

    @post("/v1/jobs/{job}/hold")
    def hold(self, job: str) -> JobIds:
        """Keep a waiting job from starting."""

    @post("/v1/jobs/{job}/release")
    def release(self, job: str) -> JobIds:
        """Release a held job."""

    @post("/v1/jobs/{job}/requeue")
    def requeue(self, job: str) -> JobIds:
        """Stop the run of a job; the job waits again."""

    @post("/v1/jobs/{job}/update")
    def update(self, job: str, body: JobUpdate) -> JobIds:
        """Change a waiting job, or the time limit of a running one."""

    @post("/v1/jobs/{job}/signal")
    def signal(self, job: str, body: JobSignal) -> JobIds:
        """Send a signal to a running job."""

    @post("/v1/reservations", status=201)
    def reserve(self, body: ReservationRequest) -> ReservationMade:
        """Book GPUs for a window of time."""

    @get("/v1/reservations")
    def reservations(self) -> Reservations:
        """Reservations that have not ended."""

    @post("/v1/reservations/{reservation}/cancel")
    def unreserve(self, reservation: str) -> Reservations:
        """Cancel a reservation in which no job runs."""

    @get("/v1/jobs/{job}/outcome")
    def outcome(self, job: str, *, wait: Wait = 0) -> Outcomes:
        """How a job, or the jobs of an array, ended."""

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
        """What ended jobs used, by user, queue, account, day or job."""

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
        """The output of a run, from X-Kant-Offset on."""

    @get("/v1/jobs/{job}/history")
    def history(self, job: str) -> History:
        """The events and decisions of a job."""

    @get("/v1/record")
    def record(self, *, since: Cursor = "") -> RecordAnswer:
        """The data of the page, or its changes (docs/record.md)."""

    @get("/v1/queues", ClusterAnswer)
    def queues(self) -> dict[str, Any]:
        """Queues, their quotas and their use."""

    @post("/v1/queues/pause")
    def pause(self, body: QueueNames) -> PausedQueues:
        """Start nothing in these queues, or in any; running jobs continue."""

    @post("/v1/queues/resume")
    def resume(self, body: QueueNames) -> PausedQueues:
        """Resume these queues, or all."""

    @post("/v1/machines/{machine}/leave")
    def leave(self, machine: str, body: MachineLeaves) -> MachineJobs:
        """Start nothing on a machine that has joined, and let it leave once nothing runs there."""

    @get("/v1/eta", ClusterAnswer)
    def eta(self, *, job: str | None = None) -> dict[str, Any]:
        """When the waiting jobs (or one) are expected to start."""

    @post("/v1/whatif")
    def whatif(self, body: Question) -> Futures:
        """The effect of a change on the waits of all jobs."""

    @get("/v1/profiles")
    def profiles(self) -> Profiles:
        """The built-in profiles."""

    @post("/v1/eta", answers=ClusterAnswer)
    def trial(self, body: Submission) -> dict[str, Any]:
        """When a job would start if it were submitted now. It is not submitted, and other jobs are not named."""

    @get("/v1/top", ClusterAnswer)
    def top(self) -> dict[str, Any]:
        """The use of pools and nodes, and the largest jobs."""

    @get("/v1/status", ClusterAnswer)
    def status(self, *, optimality: bool = False) -> dict[str, Any]:
        """The capacity and load of the cluster, and how far that is from the optimum."""

    @get("/v1/health")
    def health(self) -> ServiceHealth:
        """Whether Kant can write, and its state."""

    @get("/v1/whoami")
    def whoami(self, *, page: Page | None = None) -> Whoami:
        """The caller and its role."""

    @get("/v1/audit")
    def audit(
        self, *, user: str | None = None, refused: bool = False, before: Before | None = None, limit: Limit = 100
    ) -> AuditLog:
        """Actions of callers and refusals, the latest first, a page at a time."""

    @get("/v1/operations")
    def operations(self) -> Operations:
        """The latest plans of `kant ops` and of assistants, and their outcomes."""

    @post("/v1/stop")
    def stop(self) -> ServiceHealth:
        """Stop Kant; running jobs continue."""

    @get("/metrics")
    def metrics(self) -> str:
        """Metrics for Prometheus (docs/up.md)."""

    @get("/v1/openapi.json")
    def schema(self) -> dict[str, Any]:
        """This schema."""


class Streams:
    """The routes whose answer has no end."""

    @get("/v1/jobs/{job}/attach", status=101)
    def attach(self, job: str, *, rows: Rows = 0, columns: Columns = 0, offset: ShownFrom = 0) -> None:
        """A WebSocket: the terminal of a waiting or running job (docs/up.md)."""

    @get("/v1/jobs/{job}/shell", status=101)
    def shell(
        self, job: str, *, rows: Rows = 0, columns: Columns = 0, pty: Pty = True, term: Term | None = None,
        node: Node | None = None,
    ) -> None:  # fmt: skip
        """A WebSocket: a command on the GPUs of a running job (docs/up.md)."""

    @get("/v1/events", media="text/event-stream")
    def events(self) -> None:
        """Changes of jobs as server-sent events."""


ROUTES: tuple[ApiRoute[..., Any], ...] = tuple(
    each for table in (Routes, Streams) for each in vars(table).values() if isinstance(each, ApiRoute)
)
