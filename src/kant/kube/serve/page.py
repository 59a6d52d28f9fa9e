"""The web page of Kant on Kubernetes, and its data under /v1, for callers on the loopback interface of the pod.

Callers use `kubectl port-forward`, which Kubernetes authorizes, and may ask any question, also a what-if (by POST).
Other callers, such as `kant ops --kube`, get answers only to signed questions (`connect/ticket.py`). An order needs the
caller's own token (`user/page_orders.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
from aiohttp import web

from kant.kube.connect.config import Config
from kant.kube.connect.ticket import NOT_YET, UNASKABLE, is_signed
from kant.kube.serve.led_run import NotLeadingError
from kant.kube.serve.questions import LeaderQuestions
from kant.kube.serve.server import failure, is_loopback
from kant.live.questions import UnknownJobError
from kant.model.errors import InputError

HERE = ("localhost", "127.0.0.1", "[::1]")
LOOK = 0.5  # seconds between two checks for changes
BEAT = 15.0  # seconds after which a quiet stream sends a keep-alive

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WhatIf = Callable[[str, int, bytes, Callable[[], bool]], Awaitable[tuple[int, bytes]]]
"""Answers a question about a journal. Its arguments are the journal's path, the present (microseconds since the Unix
epoch), the question as JSON, and whether the caller is gone. Returns an HTTP status and JSON."""


class StrangerError(Exception):
    """The API server does not accept the caller. `code` is the HTTP status of the response."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class OrderDesk(Protocol):
    """Carries out the orders of callers (cancel, hold and the like) with their own tokens."""

    async def caller(self, request: web.Request) -> tuple[str, list[str]]:
        """Return the caller's name ("": no token), and the orders that they may give. Raises StrangerError."""
        ...

    def routes(self) -> list[tuple[str, Handler]]:
        """Return the paths of the orders, each with its handler."""
        ...

    async def operations(self) -> list[Any]:
        """Return the latest plans and actions of `kant ops`. Raises InputError if they cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class PageContent:
    """The files of the page, the handler of what-ifs, and the answer of /v1/profiles: the profiles for what-ifs.

    `orders` returns an order desk for an API server. `view` returns the state in the form that `kant ops` uses; `past`
    answers the questions of `kant ops` about the journal.
    """

    files: tuple[web.RouteDef, ...]
    whatif: WhatIf
    profiles: Any
    orders: Callable[[Config], OrderDesk]
    view: Callable[[LeaderQuestions], Any]
    past: WhatIf


def routes(questions: LeaderQuestions, page: PageContent, config: Config, ticket: str = "") -> list[web.RouteDef]:
    """Return all routes. Orders go to the API server of `config`. Remote questions must be signed with `ticket`."""
    orders = page.orders(config)

    def job(request: web.Request) -> str:
        # unquoted once more: API servers decode an encoded slash only once
        return unquote(request.match_info["job"])

    async def whoami(request: web.Request) -> dict[str, Any]:
        user, more = await orders.caller(request)
        may = [*answers, "log", "events", *more, "sign_in"] + ["whatif"] * bool(questions.journal())
        role = "tenant" if user else "viewer"
        return {"user": user, "role": role, "queues": [], "address": "", "may": sorted(may)}

    async def operations(request: web.Request) -> dict[str, Any]:
        return {"entries": await orders.operations()}

    answers: dict[str, tuple[str, Callable[[web.Request], Any]]] = {
        "record": ("/v1/record", lambda request: questions.record(request.query.get("since", ""))),
        "queues": ("/v1/queues", lambda request: questions.queues()),
        "eta": ("/v1/eta", lambda request: questions.eta(request.query.get("job", ""))),
        "top": ("/v1/top", lambda request: questions.top()),
        "status": ("/v1/status", lambda request: questions.status(request.query.get("optimality") == "true")),
        "health": ("/v1/health", lambda request: questions.health()),
        "whoami": ("/v1/whoami", whoami),
        "profiles": ("/v1/profiles", lambda request: page.profiles),
        "jobs": ("/v1/jobs", lambda request: _jobs(questions, request)),
        "job": ("/v1/jobs/{job}", lambda request: questions.job(job(request))),
        "why": ("/v1/jobs/{job}/why", lambda request: questions.why(job(request))),
        "history": ("/v1/jobs/{job}/history", lambda request: questions.history(job(request))),
        "operations": ("/v1/operations", operations),
    }
    asked = [(path, _answers(ask)) for path, ask in answers.values()]
    asked.append(("/v1/ops/view", _answers(lambda request: page.view(questions))))
    asked.append(("/v1/ops/past", _of_journal(questions, page.past, _asked_by_query)))
    seen = [("/v1/jobs/{job}/log", _output), ("/v1/events", _events(questions))]
    seen += [(each.path, each.handler) for each in page.files]
    sent = [("/v1/whatif", _of_journal(questions, page.whatif, _asked_by_post)), *orders.routes()]
    return [
        *(web.get(path, _guarded(handler, ticket)) for path, handler in asked),
        *(web.get(path, _guarded(handler)) for path, handler in seen),
        *(web.post(path, _guarded(handler)) for path, handler in sent),
    ]


class _UnreadError(Exception):
    """A question that cannot be read. Its arguments are a sentence and an HTTP status."""


async def _asked_by_post(request: web.Request) -> bytes:
    """Return the body if its content type is JSON, which a form on another web page cannot send."""
    if request.content_type != "application/json":
        raise _UnreadError("POST /v1/whatif: expected the Content-Type application/json", 415)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _UnreadError("POST /v1/whatif: expected a question of at most 1 MiB", 413) from None


async def _asked_by_query(request: web.Request) -> bytes:
    return request.query.get("asked", "").encode()


def _of_journal(
    questions: LeaderQuestions, answer: WhatIf, asked_by: Callable[[web.Request], Awaitable[bytes]]
) -> Handler:
    """Return a handler of questions about the journal that this leader writes, such as what-ifs."""

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            asked = await asked_by(request)
            journal, now = questions.present_journal()
        except _UnreadError as error:
            return failure(*error.args)
        except NotLeadingError as error:
            return failure(str(error), 503, error.reason)
        if not journal:
            return failure("the journal: expected one to start futures from (`kant kube run --journal FOLDER`)", 409)

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        code, body = await answer(journal, now, asked, gone)
        if code != 200:
            return failure(msgspec.json.decode(body)["error"], code, NOT_YET if code == 503 else UNASKABLE)
        return web.Response(body=body, content_type="application/json")

    return handler


async def _output(request: web.Request) -> web.StreamResponse:
    """Answer with the command that shows the pods' output, which Kant itself may not read."""
    space, _, name = request.match_info["job"].partition("/")
    text = f"[kant: `kant logs --namespace {space} {name}` or `kubectl logs` prints its output]\n".encode()
    headers = {"X-Kant-Offset": "0", "X-Kant-End": str(len(text))}
    return web.Response(body=text, headers=headers, content_type="text/plain", charset="utf-8")


def _jobs(questions: LeaderQuestions, request: web.Request) -> dict[str, Any]:
    query = request.query
    phases = tuple(part for part in query.get("state", "").split(",") if part)
    before = _number(request, "before", 0, 1 << 62) if "before" in query else None
    limit = _number(request, "limit", 1, 1000) if "limit" in query else 100
    return questions.jobs(phases, query.get("queue", ""), query.get("user", ""), before, limit)


def _number(request: web.Request, name: str, low: int, high: int) -> int:
    text = request.query[name]
    if not re.fullmatch("[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise InputError(name, f"a whole number from {low} to {high}", text)
    return int(text)


def _guarded(handler: Handler, ticket: str = "") -> Handler:
    """Let a handler serve only callers on loopback that name a local host (against DNS rebinding), and requests signed
    with the `ticket` ("": none).
    """

    async def guarded(request: web.Request) -> web.StreamResponse:
        if ticket and is_signed(ticket, request.raw_path):
            return await handler(request)
        name = request.host.rpartition(":")[0] or request.host
        if not is_loopback(request) or (name not in HERE and request.host not in HERE):
            return failure("the page: expected a caller in the leader's pod, such as kubectl port-forward", 403)
        return await handler(request)

    return guarded


def _answers(ask: Callable[[web.Request], Any]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            found = ask(request)
            if inspect.isawaitable(found):
                found = await found
        except NotLeadingError as error:
            return failure(str(error), 503, error.reason)
        except UnknownJobError as error:
            return failure(str(error), 404)
        except StrangerError as error:
            return failure(str(error), error.code)
        except InputError as error:
            return failure(str(error), 400)
        reply = web.Response(body=msgspec.json.encode(found), content_type="application/json")
        reply.headers["Cache-Control"] = "no-store"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            reply.enable_compression(web.ContentCoding.gzip)
        return reply

    return handler


def _events(questions: LeaderQuestions) -> Handler:
    """Return a handler that streams an empty event after changes. The page then reads the record."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        await response.write(b": kant\n\n")
        seen, quiet = questions.led.mark, 0.0
        while True:
            await asyncio.sleep(LOOK)
            quiet += LOOK
            if questions.led.mark != seen:
                seen, quiet = questions.led.mark, 0.0
                await response.write(b"event: job\ndata: {}\n\n")
            elif quiet >= BEAT:
                quiet = 0.0
                await response.write(b": quiet\n\n")

    return handler
