"""Access control of the API: authenticates callers and checks their rights."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.service.callers import Callers
from kant.service.replies import failure
from kant.service.roles import RIGHTS, VIEWER, Caller, ForbiddenError, check_role
from kant.service.routes import ROUTES
from kant.service.store import JobStore, StoreFullError

log = logging.getLogger("kant.service")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
GUARDED = ("/v1/", "/metrics")
PAUSE = 0.1  # seconds for which refusals are collected, to be written together
_ROUTES = {(route.method, route.path): route for route in ROUTES}
EXAMPLE = "an IP address with a port, such as 127.0.0.1:8080"


def address(text: str, shared: bool) -> tuple[str, int]:
    """Parse `--listen` into host and port. Raises InputError, also for a public address unless tokens are `shared`."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):(\d{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise InputError("--listen", EXAMPLE, text)
    host = match[1].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InputError("--listen", EXAMPLE, text) from None
    if not loopback and not shared:
        what = "a loopback address such as 127.0.0.1:8080, or tokens (`kant token new`, or --token-file)"
        raise InputError("--listen", what, text)
    return host, int(match[2])


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach `--listen`, which must be valid. True if it is "" (no address)."""
    return not listen or ipaddress.ip_address(listen.rpartition(":")[0].strip("[]")).is_loopback


class Guard:
    """Requires a token of every caller over TCP, and rejects requests of foreign web pages in a user's browser.

    `names` are the host names of a proxy on this machine. Paths outside `GUARDED` (the web page) need no token.
    """

    def __init__(
        self, callers: Callers, store: JobStore, clock: Callable[[], int], names: tuple[str, ...] = ()
    ) -> None:
        self.callers = callers
        self.store = store
        self.clock = clock
        self.names = (*LOCAL_NAMES, *names)
        self._writing: asyncio.TimerHandle | None = None

    def refused(self, request: web.Request) -> web.Response | None:
        """Return a response that refuses the request, or set its `caller` and return None. Raises ForbiddenError."""
        if self._is_elsewhere(request):
            return failure("Host and Origin: expected the name of this machine, or one given by --proxy-name", 403)
        caller = self.callers.of(request)
        request["caller"] = caller
        if not request.path.startswith(GUARDED):
            return None
        if caller is None:
            what = "`Bearer TOKEN` with a valid token (`kant page` and `kant token new` make one)"
            return failure(f"Authorization: expected {what}", 401, WWW_Authenticate="Bearer")
        resource = request.match_info.route.resource
        route = _ROUTES.get((request.method, resource.canonical)) if resource is not None else None
        if route is not None:
            check_role(caller, route.name)
        return None

    def _is_elsewhere(self, request: web.Request) -> bool:
        """Whether Host or Origin shows that a foreign page sent the request, under a name that resolves to this
        machine.
        """
        own = request.transport.get_extra_info("socket") if request.transport is not None else None
        if own is None or own.family == socket.AF_UNIX or not ipaddress.ip_address(own.getsockname()[0]).is_loopback:
            return False
        name = request.host.rpartition(":")[0] or request.host
        if name not in self.names and request.host not in self.names:
            return True
        origin = request.headers.get("Origin")
        own_page = f"{request.scheme}://{request.host}"
        return origin is not None and origin != own_page and urlsplit(origin).netloc not in self.names

    def note(self, request: web.Request, error: InputError) -> None:
        """Queue an audit entry for a refused order of a known caller. Orders of unknown callers are not recorded, since
        they could fill the disk.
        """
        caller: Caller | None = request.get("caller")
        resource = request.match_info.route.resource
        route = _ROUTES.get((request.method, resource.canonical)) if resource is not None else None
        orders = route is not None and route.method == "POST" and RIGHTS.get(route.name) != VIEWER
        if caller is None or route is None or not (orders or isinstance(error, ForbiddenError)):
            return
        what = request.match_info.get("job", "")
        self.store.note(self.clock(), caller, route.name, what, refused=str(error))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(PAUSE, self.write)

    def write(self) -> None:
        """Write the pending audit entries to disk; while the disk is full they are kept in memory."""
        self._writing = None
        try:
            self.store.write([])
        except StoreFullError as error:
            log_event(log, "the audit log waits", logging.WARNING, error=str(error))
