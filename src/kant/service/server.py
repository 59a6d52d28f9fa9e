"""The web server: the API on a Unix socket that its owner and an optional group can open, and on a TCP address."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kant.live.logs import log_event
from kant.local import descriptors
from kant.model.errors import InputError
from kant.service.connections import Connections
from kant.service.guard import address
from kant.service.http import RouteHandlers
from kant.service.listener import Listener
from kant.service.socket_access import open_to, peer

log = logging.getLogger("kant.service")
LONGEST_SOCKET = 107  # the most bytes of a socket path in Linux
BACKLOG = 1024
HEAD_S = 10.0
"""Timeout in seconds for the TLS handshake and the head of the first request on a new connection."""
IDLE_S = 75.0
"""Timeout in seconds between a response and the head of the next request."""
BY_SOCKET, BY_ADDRESS = 2, 4
"""n, where the connections of the Unix socket, and those of the address, use at most 1/n of the file descriptors."""
FEWEST, MOST = 16, 4096
"""Minimum and maximum of a listener's limit of connections, regardless of the limit of open files."""
OWNER, OTHERS, ADDRESS = 32, 12, 8
"""A number n for each: the last 1/n of all file descriptors is not available to Kant's owner, to other users of the
Unix socket, and to connections to the address.
"""
FOR_OWNER = 16
"""By how many connections Kant's owner may exceed the limit of the socket."""


class _Faults(logging.Filter):
    """Drops log records of invalid requests, with which strangers could fill the disk. Keeps those of server errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_logger = logging.getLogger("kant.service.aiohttp")
_logger.addFilter(_Faults())


class HttpServer:
    """The web server while it runs: `async with HttpServer(...)`. `address` is its TCP address ("": it listens only on
    the Unix socket).

    With `any_port`, a free port is used if the address's port is taken. With `tls` the address uses HTTPS. Members of
    the `group` may open the socket (None: only its owner may).
    """

    def __init__(
        self,
        service: RouteHandlers,
        path: Path,
        listen: str = "",
        any_port: bool = False,
        tls: ssl.SSLContext | None = None,
        group: int | None = None,
    ) -> None:
        self.path = path
        self.tls = tls
        self.group = group
        self.listen = listen
        self.any_port = any_port
        self.service = service
        self.host, self.port = address(listen, service.guard.callers.is_shared) if listen else ("", 0)
        if len(os.fsencode(path)) > LONGEST_SOCKET:
            raise InputError(
                "--home", f"a path of at most {LONGEST_SOCKET - len(path.name) - 1} bytes", str(path.parent)
            )
        self._by_socket, self._by_address = (Connections(_most(part)) for part in (BY_SOCKET, BY_ADDRESS))
        self._listeners: list[Listener] = []
        self._runner = web.AppRunner(
            service.application(), access_log=None, shutdown_timeout=1, keepalive_timeout=IDLE_S, logger=_logger
        )

    @property
    def address(self) -> str:
        return self.service.address

    async def __aenter__(self) -> HttpServer:
        await self._runner.setup()
        try:
            self.path.unlink(missing_ok=True)  # the holder of the home's lock owns the socket
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            mask = os.umask(0o177)
            try:
                own.bind(str(self.path))
                own.listen(BACKLOG)
            finally:
                os.umask(mask)
            self._take(own)
            if self.group is not None:
                open_to(self.group, self.path.parent, self.path)
            if self.host:
                self._open()
        except OSError as error:
            await self._close()
            where, what = ("--listen", self.listen) if self.host else ("--home", str(self.path))
            raise InputError(where, f"an address that is free ({os.strerror(error.errno or 0)})", what) from None
        return self

    def _open(self) -> None:
        """Listen on the address. Raises OSError."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        for port in (self.port, 0) if self.any_port else (self.port,):
            try:
                own = socket.create_server((self.host, port), family=family, backlog=BACKLOG)
            except OSError as error:
                if not self.any_port:
                    raise
                log_event(
                    log, "the port is not free", address=f"{self.host}:{port}", error=os.strerror(error.errno or 0)
                )
            else:
                self._take(own, by_address=True)
                self.port = own.getsockname()[1]
                host = f"[{self.host}]" if ":" in self.host else self.host
                self.service.address = f"{'https://' if self.tls is not None else ''}{host}:{self.port}"
                return

    def _take(self, own: socket.socket, by_address: bool = False) -> None:
        """Accept the connections of a listening socket."""
        make = self._runner.server
        assert make is not None
        if by_address:
            every = (self._by_address, self._by_socket)
            self._listeners.append(Listener(own, make, every, lambda found: (0, ADDRESS), HEAD_S, self.tls))
        else:
            every = (self._by_socket, self._by_address)
            self._listeners.append(Listener(own, make, every, _of_user, HEAD_S))

    async def _close(self) -> None:
        for each in self._listeners:
            each.close()
        await self._runner.cleanup()

    async def __aexit__(self, *_: object) -> None:
        await self._close()
        self.path.unlink(missing_ok=True)


def _most(part: int) -> int:
    """Return the maximum number of connections of one listener: 1/`part` of the file descriptors, within bounds."""
    return min(max(descriptors.limit() // part, FEWEST), MOST)


def _of_user(found: socket.socket) -> tuple[int, int]:
    """Return by how many connections a peer on the Unix socket may exceed the limit, and a number n: the peer may not
    use the last 1/n of the file descriptors.
    """
    _, uid = peer(found)
    return (FOR_OWNER, OWNER) if uid in (0, os.geteuid()) else (0, OTHERS)
