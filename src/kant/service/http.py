"""The API over HTTP: on a Unix socket that only its owner can open, and where wanted on an address."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import pwd
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from kant.live.logs import said
from kant.local.record import OVER, Submission
from kant.model.errors import InputError
from kant.service.api import Api, Unknown
from kant.service.events import Events
from kant.service.routes import ROUTES

log = logging.getLogger("kant.service")
MOST_BODY = 8 << 20
LONGEST_SOCKET = 107  # bytes of a path that the operating system takes
FOLLOW = 0.2  # seconds between two looks at a log
BEAT = 15.0  # seconds after which a quiet stream says that it lives
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def address(text: str, token: str) -> tuple[str, int]:
    """Host and port of `--listen`. Raises InputError; without a token, also for an address beyond this machine."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):(\d{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise InputError("--listen", "an IP address with a port, such as 127.0.0.1:8080", text)
    host = match[1].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InputError("--listen", "an IP address with a port, such as 127.0.0.1:8080", text) from None
    if not loopback and not token:
        raise InputError("--listen", "a loopback address such as 127.0.0.1:8080, or --token-file beside it", text)
    return host, int(match[2])


def caller(request: web.Request) -> str:
    """Who calls, as the operating system says: the owner of the other end of the socket, or an address."""
    assert request.transport is not None
    own = request.transport.get_extra_info("socket")
    if own is not None and own.family == socket.AF_UNIX:
        pid, uid, _ = struct.unpack("3i", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            return f"{pwd.getpwuid(uid).pw_name} (uid {uid}, pid {pid})"
        except KeyError:
            return f"{uid} (uid {uid}, pid {pid})"
    peer = request.transport.get_extra_info("peername")
    return f"{pwd.getpwuid(os.getuid()).pw_name} (from {peer[0]})" if peer else "unknown"


def answer(value: Any, status: int = 200) -> web.Response:
    """One JSON object."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def failure(sentence: str, status: int) -> web.Response:
    """What was wrong."""
    return answer({"error": sentence}, status)


class Service:
    """The handlers of the routes, by their names."""

    def __init__(self, api: Api, events: Events, stop: asyncio.Event, token: str = "") -> None:
        self.api = api
        self.feed = events
        self.stopping = stop
        self.token = token
        self._submission = msgspec.json.Decoder(Submission)
        self._schema = (resources.files("kant.service") / "openapi.json").read_bytes()

    def application(self) -> web.Application:
        """All that is served."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY)
        app.add_routes([web.route(route.method, route.path, getattr(self, route.name)) for route in ROUTES])
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who may come, and put every failure in one sentence."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except Unknown as error:
            return failure(str(error), 404)
        except InputError as error:
            return failure(str(error), 507 if error.where == "the store" else 400)
        except msgspec.ValidationError as error:
            return failure(f"the request: expected what the schema says ({error})", 400)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return failure(f"the request: expected JSON ({error})", 400)
        except web.HTTPException as error:
            what = f"{request.method} {request.path}: expected what /v1/openapi.json has ({error.reason})"
            return failure(what, error.status)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            said(log, "a request failed", logging.ERROR, path=request.path)
            log.exception("a request failed")
            return failure("Kant: expected no fault of its own; its log has more", 500)

    def _refused(self, request: web.Request) -> web.Response | None:
        """Who comes by an address needs the token if there is one; and no web page of others may come at all."""
        own = request.transport.get_extra_info("socket") if request.transport is not None else None
        if own is not None and own.family == socket.AF_UNIX:
            return None
        if self.token:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return failure("Authorization: expected `Bearer TOKEN` with the token of this Kant", 401)
            return None
        name = request.host.rpartition(":")[0] or request.host
        origin = request.headers.get("Origin")
        if name not in LOCAL_NAMES or (origin is not None and origin != f"http://{request.host}"):
            return failure("Host and Origin: expected those of this machine", 403)
        return None

    # --- the handlers -------------------------------------------------------------------------------------------

    async def submit(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return failure("Content-Type: expected application/json", 415)
        wish = self._submission.decode(await request.read())
        return answer(await self.api.submit(wish, caller(request)), 201)

    async def jobs(self, request: web.Request) -> web.Response:
        phases = tuple(part for part in request.query.get("state", "").split(",") if part)
        before = number(request, "before", 0, 1 << 62, -1)
        limit = number(request, "limit", 1, 1000, 100)
        queue, user = (request.query.get(name, "") for name in ("queue", "user"))
        return answer(self.api.page(phases, queue, user, before if before >= 0 else None, limit))

    async def job(self, request: web.Request) -> web.Response:
        return answer(self.api.job(request.match_info["job"]))

    async def cancel(self, request: web.Request) -> web.Response:
        return answer(await self.api.cancel(request.match_info["job"], caller(request)))

    async def hold(self, request: web.Request) -> web.Response:
        return answer(await self.api.hold(request.match_info["job"], caller(request)))

    async def release(self, request: web.Request) -> web.Response:
        return answer(await self.api.release(request.match_info["job"], caller(request)))

    async def why(self, request: web.Request) -> web.Response:
        return answer(self.api.why(request.match_info["job"]))

    async def log(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info["job"]
        offset = number(request, "offset", -(1 << 62), 1 << 62, 0)
        limit = number(request, "limit", 1, 1 << 24, 1 << 20)
        found = self.api.log(job, offset, limit)
        headers = {"X-Kant-Offset": str(found.offset), "X-Kant-End": str(found.end)}
        if request.query.get("follow", "false") != "true":
            return web.Response(body=found.data, headers=headers, content_type="application/octet-stream")
        response = web.StreamResponse(headers=headers | {"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        attempt = self.api.record(job).attempt
        while not self.stopping.is_set():
            record, after = self.api.record(job), found.offset + len(found.data)
            await response.write(found.data)
            if not found.data:
                if record.phase in OVER:
                    break
                await asyncio.sleep(FOLLOW)
                if record.attempt != attempt:  # it is tried again, and its output begins anew
                    attempt, after = record.attempt, 0
            found = self.api.log(job, after, limit)
        await response.write_eof()
        return response

    async def queues(self, request: web.Request) -> web.Response:
        return answer(self.api.queue())

    async def eta(self, request: web.Request) -> web.Response:
        return answer(self.api.eta())

    async def top(self, request: web.Request) -> web.Response:
        return answer(self.api.top())

    async def health(self, request: web.Request) -> web.Response:
        return answer(self.api.health())

    async def stop(self, request: web.Request) -> web.Response:
        said(log, "asked to stop", by=caller(request))
        found = self.api.health()
        self.stopping.set()
        return answer(found)

    async def schema(self, request: web.Request) -> web.Response:
        return web.Response(body=self._schema, content_type="application/json")

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", "")
        seen = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else self.feed.end
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        await response.write(b": kant\n\n")
        while not self.stopping.is_set():
            news = self.feed.since(seen)
            seen = self.feed.end
            if news:
                await response.write(news)
            await self.feed.more(seen, BEAT)
            if self.feed.end == seen:
                await response.write(b": quiet\n\n")
        return response


def number(request: web.Request, name: str, low: int, high: int, default: int) -> int:
    """A whole number of the query. Raises InputError."""
    text = request.query.get(name)
    if text is None:
        return default
    if not re.fullmatch("-?[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise InputError(name, f"a whole number from {low} to {high}", text)
    return int(text)


class Server:
    """The web server while it runs: `async with Server(...)`. `port` is the one that was opened, if one was."""

    def __init__(self, service: Service, path: Path, listen: str = "") -> None:
        self.path = path
        self.listen = listen
        self.host, self.port = address(listen, service.token) if listen else ("", 0)
        if len(os.fsencode(path)) > LONGEST_SOCKET:
            raise InputError(
                "--home", f"a path of at most {LONGEST_SOCKET - len(path.name) - 1} bytes", str(path.parent)
            )
        self._runner = web.AppRunner(service.application(), access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> Server:
        await self._runner.setup()
        try:
            self.path.unlink(missing_ok=True)  # whoever has the lock of the home owns it
            mask = os.umask(0o177)
            try:
                await web.UnixSite(self._runner, self.path, backlog=1024).start()
            finally:
                os.umask(mask)
            if self.host:
                await web.TCPSite(self._runner, self.host, self.port, backlog=1024).start()
                self.port = self._runner.addresses[-1][1]
        except OSError as error:
            await self._runner.cleanup()
            where, what = ("--listen", self.listen) if self.host else ("--home", str(self.path))
            raise InputError(where, f"an address that is free ({os.strerror(error.errno or 0)})", what) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        self.path.unlink(missing_ok=True)
