"""Runs a router: its listeners, the scraping of backends, and its shutdown, which waits for requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from kant.gateway.ask import error_body
from kant.gateway.backend import Backend
from kant.gateway.backends import Backends, Source
from kant.gateway.dispatch import Dispatcher
from kant.gateway.gossip import Gossip
from kant.gateway.meters import Meters
from kant.gateway.proxy import MOST_BODY, Proxy, ProxyOptions
from kant.gateway.record import Record
from kant.gateway.spans import RequestSpans
from kant.gateway.tenants import Tenants
from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.serving.routing import TICK_S

log = logging.getLogger("kant.gateway")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options: `listen` (`HOST:PORT`) is for clients, `operators` for operators (None: nowhere). Times are in seconds.

    With `share_port`, other routers may listen on the same port. Linux then gives each new connection to one of them.
    """

    listen: str = "127.0.0.1:8080"
    operators: str | None = None
    share_port: bool = False
    scrape_s: float = 1.0
    drain_s: float = 60.0
    events_port: int | None = None
    """The port of each backend's KV events, on its own host."""
    tls: tuple[Path, Path] | None = None
    """The certificate and the key for clients, PEM; None: plain text."""


def address(text: str, option: str) -> tuple[str, int]:
    """Parse `HOST:PORT`; raises InputError if it is invalid."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(option, "HOST:PORT, such as 127.0.0.1:8080", text)
    return host.strip("[]"), int(port)


def tls_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    """Return a server-side TLS context; raises InputError if the files are invalid."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{files[0]} and {files[1]}", f"a certificate and its key, PEM ({error})") from None
    return context


class RouterServer:
    """`async with RouterServer(…) as server`: serves until the block ends; `port` is the opened port."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tenants: Tenants,
        proxy_options: ProxyOptions,
        options: ServerOptions,
        source: Source | None = None,
        record: Record | None = None,
        again: Callable[[], Tenants] | None = None,
        spans: RequestSpans | None = None,
        gossip: Gossip | None = None,
    ) -> None:
        self.spans, self.gossip = spans, gossip
        self.dispatcher, self.tenants, self.proxy_options, self.options = dispatcher, tenants, proxy_options, options
        self.source, self.record, self.again = source, record, again
        self.context = None if options.tls is None else tls_context(options.tls)
        self.port = self.operators_port = 0
        self._open: list[web.ServerRunner] = []
        self._ticking: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RouterServer:
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self.proxy = Proxy(self.dispatcher, self.tenants, self.proxy_options, Meters(), self.record, self.spans)
        self.backends = Backends(
            self.dispatcher, self.session, self.options.scrape_s, self.source, self.options.events_port, self.gossip
        )
        try:
            await self.backends.open()
            shared = self.options.share_port
            self.port = await self._listen(self.options.listen, "--listen", self.proxy.handle, shared, self.context)
            if self.options.operators is not None:
                self.operators_port = await self._listen(self.options.operators, "--operators", self._operate)
        except BaseException:
            await self._close()
            raise
        if self.dispatcher.router.holds:
            self._ticking = asyncio.create_task(self._tick())
        if self.spans is not None:
            self._sending = asyncio.create_task(self.spans.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.backends.close()
        if self._ticking is not None:
            self._ticking.cancel()
        for runner in self._open:
            await runner.cleanup()
        self.proxy.close()
        if self.record is not None:
            self.record.close()
        await ended(self._sending)
        await self.session.close()

    def reload(self) -> None:
        """Reload the tenants and the certificate, and reopen the record file.

        Raises InputError if one of them is invalid. In that case nothing changes.
        """
        fresh = self.again() if self.again is not None else None
        if self.options.tls is not None and self.context is not None:
            tls_context(self.options.tls)  # find errors before anything changes
        if self.record is not None:
            self.record.reopen()
        if self.options.tls is not None and self.context is not None:
            self.context.load_cert_chain(*self.options.tls)
        if fresh is not None:
            self.tenants.become(fresh)

    async def _listen(
        self,
        where: str,
        option: str,
        handler: Callable[[web.BaseRequest], Any],
        shared: bool = False,
        context: ssl.SSLContext | None = None,
    ) -> int:
        host, port = address(where, option)

        def request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            loop = asyncio.get_running_loop()
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_BODY)

        server = web.Server(handler, request_factory=request, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=1)
        self._open.append(runner)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=context, backlog=4096, reuse_port=shared or None)
            await site.start()
        except OSError as error:
            raise InputError(option, f"an address that is free ({error.strerror or error})", where) from None
        return int(runner.addresses[0][1])

    async def drain(self) -> None:
        """Accept no new requests, and wait for those in flight for at most `drain_s`."""
        self.proxy.draining = True
        self.proxy.idle.clear()
        if self.proxy.in_flight:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.drain_s):
                    await self.proxy.idle.wait()

    # --- loops ------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Try periodically to place held requests again, since a router that holds them may decide otherwise later."""
        while True:
            await asyncio.sleep(TICK_S)
            self.dispatcher.now = time.monotonic()
            self.dispatcher.ask_again()

    # --- operators --------------------------------------------------------------------------------------------------

    async def _operate(self, request: web.BaseRequest) -> web.Response:
        """Serve `GET /backends`, `/metrics`; `POST /backends/NUMBER/drain`, `/resume`. Refuse browsers (`Origin`)."""
        parts = request.path.strip("/").split("/")
        if "Origin" in request.headers:
            return _answer(403, "expected no request from a browser")
        if request.method == "GET" and parts == ["backends"]:
            return _json([self._row(b) for b in self.dispatcher.backends])
        if request.method == "GET" and parts == ["metrics"]:
            return self.proxy.metrics()
        known = {str(backend.number): backend for backend in self.dispatcher.backends}
        if request.method == "POST" and len(parts) == 3 and parts[0] == "backends" and parts[2] in ("drain", "resume"):
            if parts[1] not in known:
                return _answer(404, f"expected one of the {len(known)} backends that GET /backends lists")
            backend = known[parts[1]]
            backend.draining = parts[2] == "drain"
            self.dispatcher.ask_again()
            return _json(self._row(backend))
        return _answer(404, "expected GET /backends, POST /backends/NUMBER/drain or POST /backends/NUMBER/resume")

    def _row(self, backend: Backend) -> dict[str, object]:
        return {
            "backend": backend.number,
            "url": backend.url,
            "up": backend.up,
            "ejected": backend.health.ejected,
            "draining": backend.draining,
            "leaving": backend.leaving,
            "in_flight": len(backend.rows),
            "tokens": backend.site.tokens(),
            "models": sorted(backend.models or ()),
        }


def _json(found: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(found), content_type="application/json")


def _answer(status: int, message: str) -> web.Response:
    body = error_body(status, message, "invalid_request_error")
    return web.Response(body=body, status=status, content_type="application/json")


async def ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Server(Protocol):
    """A server that runs until it is stopped."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def drain(self) -> None:
        """Accept no new requests, and wait for those in flight."""
        ...

    def reload(self) -> None:
        """Reload files; raises InputError, and changes nothing, if one is invalid."""
        ...


S = TypeVar("S", bound=Server)


def collect_rarely() -> None:
    """Run Python's cyclic garbage collector rarely. Requests leave few cycles, and scanning the objects of requests in
    flight pauses all requests.
    """
    gc.collect()
    gc.freeze()  # loaded modules stay: scanning them again would pause all requests for 0.1 s
    gc.set_threshold(20_000, 50, 100)  # by default it would run ten times a second


def run(make: Callable[[], S], ready: Callable[[S], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends at once. Uses uvloop if it is installed."""

    async def main() -> None:
        stop, now = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            (now if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        async with make() as server:

            def again() -> None:
                try:
                    server.reload()
                    log_event(log, "reloaded")
                except InputError as error:
                    log_event(log, "not reloaded", logging.WARNING, error=str(error))

            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
            ready(server)
            await stop.wait()
            waits = [asyncio.create_task(server.drain()), asyncio.create_task(now.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()

    collect_rarely()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
