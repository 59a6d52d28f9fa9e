"""The API over HTTP: on a Unix socket that only its owner (and possibly a group) can open, and on a TCP address."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from importlib import resources
from inspect import isawaitable
from typing import Any

import msgspec
from aiohttp import web

from kant.live.logs import log_event
from kant.live.questions import UnknownJobError
from kant.local.accounts import home_of
from kant.local.record import OVER, JobPhase, JobRecord
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_abouts
from kant.service.connections import CountedConnection, TooManyError
from kant.service.events import Events
from kant.service.guard import Guard
from kant.service.orders import LocalOrders
from kant.service.page import routes as page_routes
from kant.service.questions import LocalQuestions
from kant.service.received import received, refusal
from kant.service.replies import answer, failure
from kant.service.roles import Caller, ForbiddenError, Role, check_own, check_user, routes_of
from kant.service.route import ApiRoute
from kant.service.routes import ROUTES
from kant.service.store import damaged
from kant.service.terminals import Send, Sessions, attach, shell
from kant.service.views import ProfileName, Profiles, Whoami
from kant.service.whatif import TooLongError, WhatIfBusyError, WhatIfDesk
from kant.sim.question import Question

log = logging.getLogger("kant.service")
MOST_BODY = 8 << 20
BODY_S = 300.0  # timeout in seconds for the body of a request
FOLLOW = 0.2  # seconds between two reads of a log
LOOK = 1.0  # seconds after which a wait checks whether Kant stops
BEAT = 15.0  # seconds after which a quiet stream sends a keep-alive

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RouteHandlers:
    """The handlers of the routes: a method with the route's name, or if there is none, a handler made by `_plain`."""

    def __init__(self, questions: LocalQuestions, events: Events, stop: asyncio.Event, guard: Guard) -> None:
        self.questions = questions
        self.orders = LocalOrders(questions)
        self.feed = events
        self.stopping = stop
        self.guard = guard
        self.address = ""
        self.desk = WhatIfDesk()
        self.sessions = Sessions(stop)
        self._schema = (resources.files("kant.service") / "openapi.json").read_bytes()

    def application(self) -> web.Application:
        """Return the web application with all routes and the page."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY)
        handlers = [getattr(self, route.name, None) or self._plain(route) for route in ROUTES]
        app.add_routes([web.route(each.method, each.path, act) for each, act in zip(ROUTES, handlers, strict=True)])
        app.add_routes(page_routes(self.questions.driver.settings.cluster.name))
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit authorized requests, and turn every failure into one sentence."""
        try:
            connection = _connection(request)
            connection.asked()
            refused = self.guard.refused(request)
            if refused is not None:
                return refused
            who: Caller | None = request["caller"]
            if who is None:
                return await handler(request)
            with connection.of.busy(connection, who.user if who.role is not Role.OPERATOR else ""):
                return await handler(request)
        except TooManyError:
            return failure("Kant: expected fewer requests of one caller at once; try again later", 503)
        except ForbiddenError as error:
            self.guard.note(request, error)
            return failure(str(error), 403)
        except UnknownJobError as error:
            self.guard.note(request, error)
            return failure(str(error), 404)
        except InputError as error:
            self.guard.note(request, error)
            return failure(str(error), 507 if error.where == "the store" else 400)
        except msgspec.ValidationError as error:
            return failure(refusal(error), 400)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return failure(f"the request: expected JSON ({error})", 400)
        except web.HTTPException as error:
            what = f"{request.method} {request.path}: expected a request as in /v1/openapi.json ({error.reason})"
            return failure(what, error.status)
        except sqlite3.DatabaseError as error:
            log_event(log, "the store cannot be read", logging.ERROR, path=request.path, error=str(error))
            return failure(str(damaged(self.questions.store.path, error)), 500)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log_event(log, "a request failed", logging.ERROR, path=request.path)
            log.exception("a request failed")
            return failure("Kant: an internal error; its log has the details", 500)

    def _plain(self, route: ApiRoute[..., Any]) -> Handler:
        """Return a handler that passes path parameters and body to the order or question with the route's name."""
        order = getattr(self.orders, route.name, None)
        act = order or getattr(self.questions, route.name)
        places, takes = route.places, route.takes

        async def handle(request: web.Request) -> web.Response:
            given: list[Any] = [request.match_info[name] for name in places]
            if takes is not None:
                given.append(received(await body(request), takes))
            if order is not None:
                given.append(caller(request))
            found = act(*given)
            return answer(await found if isawaitable(found) else found, route.status)

        return handle

    # --- the handlers of routes with a query, and of streams ----------------------------------------------------

    async def jobs(self, request: web.Request) -> web.Response:
        phases = tuple(part for part in request.query.get("state", "").split(",") if part)
        before = number(request, "before", 0, 1 << 62, -1)
        limit = number(request, "limit", 1, 1000, 100)
        queue, user, name = (request.query.get(each, "") for each in ("queue", "user", "name"))
        own = caller(request) if flag(request, "mine") else None
        return answer(self.questions.jobs(phases, queue, user, before if before >= 0 else None, limit, name, own))

    async def waiting(self, request: web.Request) -> web.Response:
        after, limit = number(request, "after", 0, 1 << 31, 0), number(request, "limit", 1, 100, 50)
        queue, user, name = (request.query.get(each, "") for each in ("queue", "user", "name"))
        own = caller(request) if flag(request, "mine") else None
        return answer(self.questions.waiting(queue, user, after, limit, name, own))

    async def job(self, request: web.Request) -> web.Response:
        return answer(self.questions.job(request.match_info["job"], caller(request)))

    async def outcome(self, request: web.Request) -> web.Response:
        job, left = request.match_info["job"], number(request, "wait", 0, 60, 0)
        end = asyncio.get_running_loop().time() + left
        while True:
            seen, found = self.feed.end, self.questions.outcome(job)
            left_s = end - asyncio.get_running_loop().time()
            if found.over or left_s <= 0 or self.stopping.is_set():
                return answer(found)
            await self.feed.more(seen, min(left_s, LOOK))

    async def usage(self, request: web.Request) -> web.Response:
        by = tuple(part for part in request.query.get("by", "").split(",") if part)
        since, until = (number(request, name, 0, 1 << 62, -1) for name in ("since", "until"))
        where = {name: request.query[name] for name in ("user", "queue") if request.query.get(name)}
        return answer(self.questions.usage(by, max(since, 0), until, where))

    async def log(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info["job"]
        offset = number(request, "offset", -(1 << 62), 1 << 62, 0)
        limit = number(request, "limit", 1, 1 << 24, 1 << 20)
        wanted = number(request, "attempt", 0, 1 << 31, 0)
        found = self.questions.log(job, offset, limit, caller(request), wanted)
        dropped = str(self.questions.dropped(job, wanted))
        headers = {"X-Kant-Offset": str(found.offset), "X-Kant-End": str(found.end), "X-Kant-Dropped": dropped}
        if not flag(request, "follow"):
            return web.Response(body=found.data, headers=headers, content_type="application/octet-stream")
        response = web.StreamResponse(headers=headers | {"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        attempt = self.questions.find(job).attempt
        while not self.stopping.is_set() and self.guard.callers.of(request) is not None:
            record, after = self.questions.find(job), found.offset + len(found.data)
            await response.write(found.data)
            if not found.data:
                if record.phase in OVER or wanted not in (0, record.attempt):
                    break
                await asyncio.sleep(FOLLOW)
                if not wanted and record.attempt != attempt:  # a new run of the job, whose output starts at 0
                    attempt, after = record.attempt, 0
            found = self.questions.log(job, after, limit, caller(request), wanted)
        await response.write_eof()
        return response

    async def attach(self, request: web.Request) -> web.StreamResponse:
        record, window = self._own_job(request, "attach"), _window(request)
        offset = number(request, "offset", -(1 << 24), 1 << 62, 0)
        if record.submission.terminal is None:
            raise InputError(f"job {record.id}", "a job with a terminal, of `kant run` or `kant submit --terminal`")
        self._note(request, "attach", record.id)

        async def act(send: Send, socket: web.WebSocketResponse) -> None:
            await attach(
                lambda: self.questions.find(record.id), self.questions.driver.launcher.folder,
                lambda: self.questions.reason(record.id), lambda: self.feed.more(self.feed.end, LOOK),
                window, offset, send, socket, lambda: self.questions.gpu_warning(record.id),
            )  # fmt: skip

        return await self.sessions.serve(request, lambda: self.guard.callers.of(request) is not None, act)

    async def shell(self, request: web.Request) -> web.StreamResponse:
        record, window = self._own_job(request, "shell"), _window(request)
        if record.phase is not JobPhase.RUNNING:
            raise InputError(f"job {record.id}", "a job that runs", str(record.phase))
        own = record.submission.env.get("SHELL") or "/bin/sh"
        opening: dict[str, Any] = window | {"pty": flag(request, "pty", True), "command": [own], "env": {}}
        if request.query.get("term"):
            opening["env"] = {"TERM": request.query["term"][:64]}
        self._note(request, "shell", record.id)
        folder = self.questions.driver.launcher.folder_on(record, request.query.get("node", ""))

        async def act(send: Send, socket: web.WebSocketResponse) -> None:
            await shell(folder, opening, send, socket)

        return await self.sessions.serve(request, lambda: self.guard.callers.of(request) is not None, act)

    def _own_job(self, request: web.Request, route: str) -> JobRecord:
        """Return a running job that the caller may attach to. Raises ForbiddenError."""
        record, who = self.questions.find(request.match_info["job"]), caller(request)
        check_own(who, route, self.questions.lineage(record.submission.queue), record.user)
        check_user(who, route, record.user)
        return record

    def _note(self, request: web.Request, verb: str, what: str) -> None:
        self.questions.store.note(self.questions.driver.clock.micros(), caller(request), verb, what)
        self.guard.write()

    async def profiles(self, request: web.Request) -> web.Response:
        return answer(Profiles([ProfileName(name, about) for name, about in builtin_abouts().items()]))

    async def whatif(self, request: web.Request) -> web.Response:
        question, stands = received(await body(request), Question), self.questions.health()
        self.questions.present()

        def gone() -> bool:
            return self.stopping.is_set() or request.transport is None or request.transport.is_closing()

        try:
            found = await self.desk.ask(stands["journal"], stands["now_us"], question, gone)
        except (WhatIfBusyError, TooLongError) as error:
            return failure(str(error), 503 if isinstance(error, WhatIfBusyError) else 504)
        return web.Response(body=found, content_type="application/json")

    async def record(self, request: web.Request) -> web.Response:
        reply = answer(self.questions.record(request.query.get("since", "")))
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            reply.enable_compression(web.ContentCoding.gzip)
        return reply

    async def eta(self, request: web.Request) -> web.Response:
        return answer(await self.questions.eta(request.query.get("job", "")))

    async def status(self, request: web.Request) -> web.Response:
        return answer(await self.questions.status(flag(request, "optimality")))

    async def stop(self, request: web.Request) -> web.Response:
        found = self.questions.health()
        log_event(log, "asked to stop", by=str(caller(request)))
        self._note(request, "stop", "")
        self.stopping.set()
        return answer(found)

    async def whoami(self, request: web.Request) -> web.Response:
        who = caller(request)
        wanted = request.query.get("page", "")
        if wanted not in ("", "same", "new"):
            raise InputError("page", "same or new", wanted)
        page = self.guard.callers.page_of(request, wanted == "new") if wanted else ""
        as_users = self.questions.driver.settings.as_users
        home = home_of(who.user if as_users else self.guard.callers.owner)
        return answer(Whoami(who.user, str(who.role), who.queues, self.address, routes_of(who), page, home))

    async def audit(self, request: web.Request) -> web.Response:
        before = number(request, "before", 0, 1 << 62, -1)
        limit = number(request, "limit", 1, 1000, 100)
        refused = flag(request, "refused")
        return answer(
            self.questions.audit(request.query.get("user", ""), refused, before if before >= 0 else None, limit)
        )

    async def operations(self, request: web.Request) -> web.Response:
        return answer(await asyncio.to_thread(self.questions.operations))

    async def metrics(self, request: web.Request) -> web.Response:
        telemetry = self.questions.driver.telemetry
        text = telemetry.text() if telemetry is not None else b""
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def schema(self, request: web.Request) -> web.Response:
        return web.Response(body=self._schema, content_type="application/json")

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", "")
        seen = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else self.feed.end
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        await response.write(b": kant\n\n")
        while not self.stopping.is_set() and self.guard.callers.of(request) is not None:
            news = self.feed.since(seen)
            seen = self.feed.end
            if news:
                await response.write(news)
            await self.feed.more(seen, BEAT)
            if self.feed.end == seen:
                await response.write(b": quiet\n\n")
        return response


async def body(request: web.Request) -> bytes:
    """Return the body of a request. Only JSON is accepted, which no HTML form can send."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="the Content-Type application/json")
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"a body that arrives within {BODY_S:g} s") from None


def _connection(request: web.Request) -> CountedConnection:
    """Return the connection of a request. Raises ConnectionError if it is closed."""
    found = request.transport.get_protocol() if request.transport is not None else None
    if not isinstance(found, CountedConnection):
        raise ConnectionResetError
    return found


def caller(request: web.Request) -> Caller:
    """Return the caller that the guard has identified."""
    who: Caller = request["caller"]
    return who


def flag(request: web.Request, name: str, default: bool = False) -> bool:
    """Parse a query parameter that is true or false. Raises InputError."""
    text = request.query.get(name, "true" if default else "false")
    if text not in ("true", "false"):
        raise InputError(name, "true or false", text)
    return text == "true"


def _window(request: web.Request) -> dict[str, int]:
    """Return the size of the caller's terminal window; 0: not known. Raises InputError."""
    return {name: number(request, name, 0, 9999, 0) for name in ("rows", "columns")}


def number(request: web.Request, name: str, low: int, high: int, default: int) -> int:
    """Parse a query parameter that is a whole number. Raises InputError."""
    text = request.query.get(name)
    if text is None:
        return default
    if not re.fullmatch("-?[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise InputError(name, f"a whole number from {low} to {high}", text)
    return int(text)
