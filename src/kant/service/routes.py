"""The routes under /v1: one table for the server and for the schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from kant import __version__
from kant.local.record import Batch, JobPhase, JobSignal, JobUpdate, WorkflowSubmission
from kant.local.reservations import ReservationWish
from kant.model.submission import Submission
from kant.service.views import (
    AuditLog,
    ClusterAnswer,
    Failure,
    History,
    JobDetail,
    JobIds,
    JobPage,
    Outcomes,
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
from kant.service.whatif import Futures
from kant.sim.whatif_request import Question


@dataclass(frozen=True, slots=True)
class Route:
    """`name` is the handler. `query` has the parameters, each with its schema; `takes` and `gives` are types."""

    method: str
    path: str
    name: str
    about: str
    gives: Any = None
    takes: Any = None
    query: dict[str, dict[str, Any]] = field(default_factory=dict)
    media: str = "application/json"
    status: int = 200


_LIMIT = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
_PLACE = {"type": "integer", "default": 0}
_SIDE = {"type": "integer", "minimum": 0, "maximum": 9999, "default": 0}
_WINDOW = {
    "rows": _SIDE | {"description": "Of the window; 0: as it was."},
    "columns": _SIDE | {"description": "Likewise."},
}
ROUTES = (
    Route("POST", "/v1/jobs", "submit", "Queue a command.", JobIds, Submission, status=201),
    Route(
        "POST", "/v1/workflows", "workflow", "Queue all stages of a workflow, or none.", JobIds, WorkflowSubmission,
        status=201,
    ),
    Route("POST", "/v1/batches", "batch", "Queue many commands, or none.", JobIds, Batch, status=201),
    Route(
        "GET", "/v1/jobs", "jobs", "Jobs, the latest first, a page at a time.", JobPage,
        query={
            "state": {"type": "string", "description": f"Some of {', '.join(JobPhase)}, divided by commas."},
            "queue": {"type": "string"}, "user": {"type": "string"},
            "name": {"type": "string", "description": "Of this name; * and ? stand for others."},
            "before": {"type": "integer", "minimum": 0, "description": "`next` of the page before."}, "limit": _LIMIT,
        },
    ),
    Route(
        "GET", "/v1/waiting", "waiting", "Jobs that wait, first in the queue's order first, each with its reason.",
        WaitingPage,
        query={
            "queue": {"type": "string"}, "user": {"type": "string"},
            "name": {"type": "string", "description": "Of this name; * and ? stand for others."},
            "after": {"type": "integer", "minimum": 0, "default": 0, "description": "`next` of the page before."},
            "limit": _LIMIT | {"maximum": 100, "default": 50},
        },
    ),
    Route("GET", "/v1/jobs/{job}", "job", "One job, whole.", JobDetail),
    Route("POST", "/v1/jobs/{job}/cancel", "cancel", "Withdraw a job or an array.", JobIds),
    Route("POST", "/v1/jobs/{job}/hold", "hold", "Keep a waiting job from starting.", JobIds),
    Route("POST", "/v1/jobs/{job}/release", "release", "Let a held job start.", JobIds),
    Route("POST", "/v1/jobs/{job}/requeue", "requeue", "Stop the run of a job, which then waits again.", JobIds),
    Route("POST", "/v1/jobs/{job}/update", "update", "Change what a waiting job asks for.", JobIds, JobUpdate),
    Route("POST", "/v1/jobs/{job}/signal", "signal", "Send a signal to a job that runs.", JobIds, JobSignal),
    Route(
        "POST", "/v1/reservations", "reserve", "Book GPUs for a window of time.", ReservationMade, ReservationWish,
        status=201,
    ),
    Route("GET", "/v1/reservations", "reservations", "What is booked and not over.", Reservations),
    Route(
        "POST", "/v1/reservations/{reservation}/cancel", "unreserve",
        "Take a reservation back in which no job runs.", Reservations,
    ),
    Route(
        "GET", "/v1/jobs/{job}/outcome", "outcome", "How a job, or those of an array, have ended.", Outcomes,
        query={"wait": {"type": "integer", "minimum": 0, "maximum": 60, "default": 0,
                        "description": "Seconds to wait until all of them are over."}},
    ),
    Route(
        "GET", "/v1/usage", "usage", "What the jobs used that have ended, by user, queue, account, day or job.", Usage,
        query={
            "by": {
                "type": "string", "default": "",
                "description": "Some of user, queue, account, day, job, divided by commas.",
            },
            "since": _PLACE | {"minimum": 0, "description": "Microseconds of the Unix epoch."},
            "until": {"type": "integer", "minimum": 0, "description": "Likewise; by default now."},
            "user": {"type": "string"}, "queue": {"type": "string"},
        },
    ),
    Route("GET", "/v1/jobs/{job}/why", "why", "Why a job waits.", Why),
    Route(
        "GET", "/v1/jobs/{job}/log", "log", "What a run has written, from X-Kant-Offset on.",
        query={
            "offset": _PLACE | {"description": "Bytes from the beginning; if negative, from the end."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1 << 24, "default": 1 << 20},
            "follow": {"type": "boolean", "default": False, "description": "Until the job is over."},
            "attempt": {"type": "integer", "minimum": 0, "default": 0, "description": "Of this run; 0: the last."},
        },
        media="application/octet-stream",
    ),
    Route(
        "GET", "/v1/jobs/{job}/attach", "attach", "A WebSocket: the terminal of a job that waits or runs (docs/up.md).",
        status=101, query=_WINDOW | {
            "offset": _PLACE | {"description": "Show output from here on; if negative, so much before the end."},
        },
    ),
    Route(
        "GET", "/v1/jobs/{job}/shell", "shell", "A WebSocket: a command beside a job that runs (docs/up.md).",
        status=101, query=_WINDOW | {
            "pty": {"type": "boolean", "default": True, "description": "With a terminal, not with pipes."},
            "term": {"type": "string", "maxLength": 64, "description": "The kind of terminal, as TERM says it."},
        },
    ),
    Route("GET", "/v1/jobs/{job}/history", "history", "What happened to a job, and what was decided.", History),
    Route(
        "GET", "/v1/record", "record", "What the page shows, or what is new of it (docs/record.md).", RecordAnswer,
        query={"since": {"type": "string", "default": "", "description": "`cursor` of the answer before."}},
    ),
    Route("GET", "/v1/queues", "queues", "Queues, quotas and what they use.", ClusterAnswer),
    Route(
        "GET", "/v1/eta", "eta", "When the waiting jobs (or one) are expected to start.", ClusterAnswer,
        query={"job": {"type": "string"}},
    ),
    Route("POST", "/v1/whatif", "whatif", "What a change would do to everybody's waits.", Futures, Question),
    Route("GET", "/v1/profiles", "profiles", "The built-in profiles.", Profiles),
    Route("GET", "/v1/top", "top", "What pools and nodes hold, and the largest jobs.", ClusterAnswer),
    Route(
        "GET", "/v1/status", "status", "What the cluster has and runs, and how far that is from the best.",
        ClusterAnswer, query={"optimality": {"type": "boolean", "default": False}},
    ),
    Route("GET", "/v1/events", "events", "Changes of jobs as server-sent events.", media="text/event-stream"),
    Route("GET", "/v1/health", "health", "Whether Kant can write, and what it has.", ServiceHealth),
    Route(
        "GET", "/v1/whoami", "whoami", "Who asks, and with which role.", Whoami,
        query={
            "page": {
                "type": "string", "enum": ["same", "new"],
                "description": "With a token for the page of a user of this machine, over the socket.",
            }
        },
    ),
    Route(
        "GET", "/v1/audit", "audit", "Who did what or was refused it, the latest first, a page at a time.", AuditLog,
        query={
            "user": {"type": "string"}, "refused": {"type": "boolean", "default": False},
            "before": {"type": "integer", "minimum": 0, "description": "`next` of the page before."}, "limit": _LIMIT,
        },
    ),
    Route("POST", "/v1/stop", "stop", "Stop Kant; what runs runs on.", ServiceHealth),
    Route("GET", "/metrics", "metrics", "What Prometheus asks for (docs/up.md).", media="text/plain"),
    Route("GET", "/v1/openapi.json", "schema", "This schema."),
)  # fmt: skip


def schema() -> dict[str, Any]:
    """The OpenAPI document. `kant/service/openapi.json` is this, and a test holds them together."""
    types = [kind for route in ROUTES for kind in (route.gives, route.takes) if kind] + [Failure]
    unique = list({each.__name__: each for each in types}.values())
    refs, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    ref = {each.__name__: found for each, found in zip(unique, refs, strict=True)}
    paths: dict[str, Any] = {}
    wrong = {"description": "What was wrong.", "content": {"application/json": {"schema": ref["Failure"]}}}
    for route in ROUTES:
        content = {route.media: {"schema": ref[route.gives.__name__]} if route.gives else {}}
        own: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.about,
            "responses": {
                str(route.status): {"description": "Done.", "content": content} | _links(route),
                "4XX": wrong,
                "5XX": wrong,
            },
        }
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "query", "schema": given} for name, given in route.query.items()
        ]
        for name in ("job", "reservation"):
            if f"{{{name}}}" in route.path:
                parameters.insert(0, {"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
        if parameters:
            own["parameters"] = parameters
        if route.takes is not None:
            body = {"application/json": {"schema": ref[route.takes.__name__]}}
            own["requestBody"] = {"required": True, "content": body}
        paths.setdefault(route.path, {})[route.method.lower()] = own
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kant", "version": __version__},
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }


def _links(route: Route) -> dict[str, Any]:
    """What can be asked of the first job that an answer names."""
    if route.name != "submit":
        return {}
    job = {"job": "$response.body#/jobs/0"}
    ways = [each for each in ROUTES if "{job}" in each.path]
    return {"links": {way.name: {"operationId": way.name, "parameters": job} for way in ways}}
