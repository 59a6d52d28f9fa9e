"""The web server: the API on a Unix socket that its owner, and a group where wanted, can open, and on an address."""

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
from kant.service.door import open_to, peer
from kant.service.guard import address
from kant.service.http import Service
from kant.service.listener import Listener

log = logging.getLogger("kant.service")
LONGEST_SOCKET = 107  # bytes of a path that the operating system takes
BACKLOG = 1024
HEAD_S = 10.0
"""Seconds in which a new connection has to send the head of a request, a TLS handshake included."""
IDLE_S = 75.0
"""Seconds after an answer in which the head of the next request has to come."""
BY_SOCKET, BY_ADDRESS = 2, 4
"""Connections take at most this part of the descriptors (1 / n) on the socket and on the address."""
FEWEST, MOST = 16, 4096
"""Connections that a listener may have at least and at most, whatever the limit of open files."""
OWNER, OTHERS, ADDRESS = 32, 12, 8
"""The last 1 / n of the descriptors are kept from Kant's owner and from others on the socket, and from the address."""
FOR_OWNER = 16
"""Connections of Kant's owner on the socket beyond the most."""


class _Faults(logging.Filter):
    """Lets through faults of the server, and not those of requests: strangers could fill the disk with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_logger = logging.getLogger("kant.service.aiohttp")
_logger.addFilter(_Faults())


class HttpServer:
    """The web server while it runs: `async with Server(...)`. `address` is where it listens, "" for the socket alone.

    With `any_port` the address is a preference: where its port is taken, a free one is opened, if there is one.
    With `tls` it speaks HTTPS there. Members of the `group` may open the socket; None: its owner alone.
    """

    def __init__(
        self,
        service: Service,
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
            self.path.unlink(missing_ok=True)  # whoever has the lock of the home owns it
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
        """Accept what comes to a socket that listens."""
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
    """How many connections of one kind there may be."""
    return min(max(descriptors.limit() // part, FEWEST), MOST)


def _of_user(found: socket.socket) -> tuple[int, int]:
    """How many more connections the user at the other end may have, and which part of the descriptors is kept."""
    _, uid = peer(found)
    return (FOR_OWNER, OWNER) if uid in (0, os.geteuid()) else (0, OTHERS)
