"""Accepting connections, as many as there is room for, so that descriptors stay for what Kant itself opens.

asyncio's own servers accept until no descriptor is left, and then write a line for each connection that waits.
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
from kant.service.connections import Connection, Connections

log = logging.getLogger("kant.service")
AT_ONCE = 16
"""Connections that are accepted before others have their turn: what they ask is read before more of them come."""
PAUSE_S = 0.2
"""Seconds after which it is tried again, where the operating system gives no connection."""
CALM_S = 600.0
"""Seconds without trouble after which trouble is said again."""
FULL = b'{"error": "Kant: expected fewer requests at once (it runs with few open files; see ulimit -n)"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(FULL), FULL)
)


class Listener:
    """Takes what comes to the socket `own`, whose connections are the first of `all`; those of other sockets follow.

    `make` makes the protocol of a connection. `favoured` says how many more of a caller are taken beyond the most, 0
    for others, and which part of all descriptors is kept from them (1 / n).
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
        """Take no more, and close all on which nothing is answered."""
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
        """Whether a connection may stay, after one that is missed less was closed if need be."""
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
        connection, begun = Connection(self.all[0], self.make(), self.head_s), False

        async def opened() -> None:
            nonlocal begun
            begun = True
            with suppress(OSError):  # it has gone, or there is no handshake
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
        """Say that there is no room, to somebody who may hear it."""
        with found, suppress(OSError):
            if self.tls is None:
                found.send(REFUSAL)
                found.shutdown(socket.SHUT_WR)
                found.recv(1 << 16)  # what is unread would take the answer with it

    def _say(self, what: str, **fields: object) -> None:
        """Log it, once while it lasts."""
        now = self._loop.time()
        if now - self._said.get(what, -CALM_S) >= CALM_S:
            log_event(log, what, logging.WARNING, listen=_name(self.own), **fields)
        self._said[what] = now


def _name(own: socket.socket) -> str:
    """What a listening socket is called."""
    name = own.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"
