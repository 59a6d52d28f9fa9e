"""Accepts connections up to a limit, so that file descriptors remain for Kant's own files. asyncio's servers accept
until no descriptor is left, and then log a line for each waiting connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

from kant.live.logs import log_event
from kant.local.descriptors import is_scarce
from kant.service.connections import Connections, CountedConnection

log = logging.getLogger("kant.service")
AT_ONCE = 16
"""Number of connections accepted in one turn: their requests are read before more connections are accepted."""
PAUSE_S = 0.2
"""Seconds before the next attempt when the operating system cannot accept a connection."""
QUIET_S = 600.0
"""Seconds for which a problem must not have occurred before it is logged again."""
FULL = b'{"error": "Kant: expected fewer requests at once (it runs with few open files; see ulimit -n)"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(FULL), FULL)
)


class Listener:
    """Accepts connections of the socket `own`. The first element of `all` has the connections of this socket; the
    others have those of other sockets.

    `make` creates the protocol of a connection. For a new connection, `favoured` returns by how many connections it may
    exceed the maximum (0: none), and a number n: it may not use the last 1/n of all file descriptors.
    """

    def __init__(
        self,
        own: socket.socket,
        make: Callable[[], asyncio.Protocol],
        all: Sequence[Connections],
        favoured: Callable[[socket.socket], tuple[int, int]],
        head_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.own = own
        self.make = make
        self.all = all
        self.favoured = favoured
        self.head_s = head_s
        self.tls = tls
        self._loop = asyncio.get_running_loop()
        self._said: dict[str, float] = {}
        self._retry: asyncio.TimerHandle | None = None
        own.setblocking(False)
        self._loop.add_reader(own, self._accept)

    def close(self) -> None:
        """Stop accepting, and close every connection that is not busy."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self.own)
        self.own.close()
        self.all[0].close_all()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                found, _ = self.own.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._say("connections cannot be accepted", error=error.strerror or str(error))
                self._close_one()
                self._loop.remove_reader(self.own)
                self._retry = self._loop.call_later(PAUSE_S, self._loop.add_reader, self.own, self._accept)
                return
            found.setblocking(False)
            if self._has_room(found):
                self._open(found)
            else:
                self._refuse(found)

    def _has_room(self, found: socket.socket) -> bool:
        """Return whether there is room for a new connection, after closing another connection if needed."""
        more, part = self.favoured(found)
        mine = self.all[0]
        if len(mine) >= mine.most + more:
            self._say("connections are closed for others", open=len(mine))
            return mine.close_one()
        if is_scarce(found.fileno(), part):
            self._say("connections are closed for others", open=len(mine), descriptor=found.fileno())
            return self._close_one()
        return True

    def _close_one(self) -> bool:
        return any(each.close_one() for each in self.all)

    def _open(self, found: socket.socket) -> None:
        connection, begun = CountedConnection(self.all[0], self.make(), self.head_s), False

        async def opened() -> None:
            nonlocal begun
            begun = True
            with suppress(OSError):  # the peer disconnected, or the handshake failed
                await self._loop.connect_accepted_socket(
                    lambda: connection, found, ssl=self.tls,
                    ssl_handshake_timeout=self.head_s if self.tls is not None else None,
                )  # fmt: skip

        def done(task: asyncio.Task[None]) -> None:
            connection.opening = None
            if not begun:
                found.close()
            if connection.transport is None:
                connection.abort()
            if not task.cancelled() and (error := task.exception()) is not None:
                log_event(log, "a connection failed", logging.ERROR, error=str(error))

        connection.opening = self._loop.create_task(opened())
        connection.opening.add_done_callback(done)

    def _refuse(self, found: socket.socket) -> None:
        """Send a 503 response, unless the connection uses TLS."""
        with found, suppress(OSError):
            if self.tls is None:
                found.send(REFUSAL)
                found.shutdown(socket.SHUT_WR)
                found.recv(1 << 16)  # unread data would reset the connection and lose the answer

    def _say(self, what: str, **fields: object) -> None:
        """Log a problem, but only once while it lasts (see QUIET_S)."""
        now = self._loop.time()
        if now - self._said.get(what, -QUIET_S) >= QUIET_S:
            log_event(log, what, logging.WARNING, listen=_name(self.own), **fields)
        self._said[what] = now


def _name(own: socket.socket) -> str:
    """Return the address of a listening socket."""
    name = own.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"
