"""The open connections of one listener: their maximum, and which connection is closed to make room for a new one.

A connection is *busy* while a request of a known caller is answered; streams, long polls and terminals are busy until
they end. Any other connection may be closed at any time: first those without a request so far, then idle connections
and those of unknown callers, the oldest first. So connections that never complete a request do not block callers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import cast

SHARE = 2
"""A caller that is not an operator may keep at most 1/`SHARE` of a listener's connections busy."""


class TooManyError(Exception):
    """The caller already has the maximum number of requests in flight."""


class Connections:
    """The open connections of a listener, at most `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._silent: dict[CountedConnection, None] = {}  # no request yet; the oldest first
        self._idle: dict[CountedConnection, None] = {}  # the longest idle first
        self._busy: set[CountedConnection] = set()
        self._callers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._silent) + len(self._idle) + len(self._busy)

    def add(self, connection: CountedConnection) -> None:
        """Add a new connection."""
        self._silent[connection] = None

    def remove(self, connection: CountedConnection) -> None:
        """Remove a closed connection."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def close_one(self) -> bool:
        """Close the oldest connection without a request, else the longest idle connection. False: all are busy."""
        each = next(chain(self._silent, self._idle), None)
        if each is None:
            return False
        each.abort()
        return True

    def close_all(self) -> None:
        """Close every connection that is not busy."""
        while self.close_one():
            pass

    @contextmanager
    def busy(self, connection: CountedConnection, caller: str) -> Iterator[None]:
        """Mark a connection as busy during the block. `caller` is "" for an operator. Raises TooManyError."""
        if caller and self._callers[caller] >= max(self.most // SHARE, 1):
            raise TooManyError
        self._callers[caller] += 1
        self.remove(connection)
        self._busy.add(connection)
        try:
            yield
        finally:
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            if connection in self._busy:  # not removed in the meantime
                self._busy.remove(connection)
                self._idle[connection] = None

    def asked(self, connection: CountedConnection) -> None:
        """Record that the head of a request has arrived, perhaps from an unknown caller."""
        if connection in self._silent:
            del self._silent[connection]
            self._idle[connection] = None


class CountedConnection(asyncio.Protocol):
    """One connection; passes its bytes to the protocol `inner`. It is closed if no request arrives within `head_s`."""

    def __init__(self, of: Connections, inner: asyncio.Protocol, head_s: float) -> None:
        self.of = of
        self.inner = inner
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._late = asyncio.get_running_loop().call_later(head_s, self.abort)
        of.add(self)

    def asked(self) -> None:
        """Record that the head of a request has arrived, which ends the timeout."""
        self._late.cancel()
        self.of.asked(self)

    def abort(self) -> None:
        """Close the connection now, even during a request or a TLS handshake."""
        self._late.cancel()
        self.of.remove(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        self.of.remove(self)
        self.inner.connection_lost(exc)
