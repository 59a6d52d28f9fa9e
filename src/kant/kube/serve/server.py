"""The web server of a replica: probes, metrics, and a dump of its state for support, on loopback only."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from aiohttp import web

from kant.kube.connect.ticket import UNASKABLE
from kant.kube.serve.metrics import KubeTelemetry
from kant.model.errors import InputError

STALE = 60.0
"""Seconds without a message of a watch after which a replica is not ready. A quiet watch gets a bookmark a minute."""


@dataclass(slots=True)
class ProbeChecks:
    """Functions for the web server. `unready` returns why the replica is not ready ("": ready), `dump` its state."""

    unready: Callable[[], str] = lambda: "it has not listed the cluster yet"
    dump: Callable[[], dict[str, Any]] = field(default=dict)


def unfresh(synced: bool, ages: dict[str, float]) -> str:
    """Return why the cluster was not listed, or a watch has been silent for over `STALE` seconds; "" if all is fresh.

    Leadership does not matter: a replica on standby is ready to take over.
    """
    if not synced:
        return "it has not listed the cluster yet"
    old = {what: age for what, age in sorted(ages.items()) if age > STALE}
    return ", ".join(f"the watch of {what} has been silent for {age:.0f} s" for what, age in old.items())


def address(text: str) -> tuple[str, int]:
    """Parse host and port of `--listen`, such as 0.0.0.0:8080, [::]:8080 or :8080. Raises InputError."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*):(\d{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise InputError("--listen", "an address with a port, such as 0.0.0.0:8080", text)
    return match[1].strip("[]") or "0.0.0.0", int(match[2])


def application(telemetry: KubeTelemetry, health: ProbeChecks) -> web.Application:
    """Return the web application with probes, metrics and the dump."""

    async def healthz(_: web.Request) -> web.Response:
        await asyncio.sleep(0)  # answered only if the event loop runs
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = health.unready()
        return web.Response(text=f"not ready: {why}\n" if why else "ok\n", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=telemetry.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def state(request: web.Request) -> web.Response:
        if not is_loopback(request):
            raise web.HTTPForbidden(text="only from the pod itself: kubectl exec, or kubectl port-forward\n")
        return web.Response(text=json.dumps(health.dump(), indent=2, default=str), content_type="application/json")

    app = web.Application()
    paths: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/metrics": metrics,
        "/debug/state": state,
    }
    app.add_routes([web.get(path, handler) for path, handler in paths.items()])
    return app


def later(make: Callable[[], Iterable[web.RouteDef]]) -> web.RouteDef:
    """Return a route for all paths that no other route matches. `make` returns its routes, at the first request."""

    @cache
    def router() -> web.UrlDispatcher:
        made = web.UrlDispatcher()
        made.add_routes(make())
        return made

    async def handler(request: web.Request) -> web.StreamResponse:
        found = await router().resolve(request)
        request.match_info.update(found)
        return await found.handler(request)

    return web.route("*", "/{path:.*}", handler)


def failure(sentence: str, status: int, reason: str = UNASKABLE) -> web.Response:
    """Return an error response in a format that both Kant's page and clients of the API server read."""
    said = {
        "error": sentence, "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason,
        "message": sentence,
    }  # fmt: skip
    return web.Response(body=msgspec.json.encode(said), status=status, content_type="application/json")


def is_loopback(request: web.Request) -> bool:
    """Whether the caller is in the pod itself."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return isinstance(peer, tuple) and ipaddress.ip_address(str(peer[0]).split("%")[0]).is_loopback


class ProbeServer:
    """The running web server; use as `async with ProbeServer(...)`. `port` is the port on which it listens."""

    def __init__(
        self, listen: str, telemetry: KubeTelemetry, health: ProbeChecks, more: Iterable[web.RouteDef] = ()
    ) -> None:
        self.listen = listen
        self.host, self.port = address(listen)
        app = application(telemetry, health)
        app.add_routes(more)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> ProbeServer:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, self.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InputError("--listen", f"an address that is free ({error.strerror or error})", self.listen) from None
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
