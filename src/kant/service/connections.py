"""The connections of one listener: how many there may be, and which of them is closed for a new one.

A connection is *busy* while a request of a known caller is answered: a stream, a long poll and a terminal are busy
until they end. All others may be closed at any time, the oldest first: those that have not asked for anything yet, then
those of strangers and of callers who are silent. So connections that finish no request keep nobody out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import cast

SHARE = 2
"""One caller who is not an operator may be busy on at most one in so many of a listener's connections."""


class TooManyError(Exception):
    """A caller has as many requests under way as one caller may have."""


class Connections:
    """The open connections of a listener, of which there may be `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._silent: dict[Connection, None] = {}  # nothing was asked on them; the oldest first
        self._idle: dict[Connection, None] = {}  # the answer was given longest ago first
        self._busy: set[Connection] = set()
        self._callers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._silent) + len(self._idle) + len(self._busy)

    def add(self, connection: Connection) -> None:
        """A connection is open."""
        self._silent[connection] = None

    def remove(self, connection: Connection) -> None:
        """A connection is gone."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def close_one(self) -> bool:
        """Close the connection that is missed least. False where all are busy."""
        each = next(chain(self._silent, self._idle), None)
        if each is None:
            return False
        each.abort()
        return True

    def close_all(self) -> None:
        """Close all on which nothing is answered now."""
        while self.close_one():
            pass

    @contextmanager
    def busy(self, connection: Connection, caller: str) -> Iterator[None]:
        """While a request is answered. `caller`: who counts, "" for an operator. Raises TooManyError."""
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
            if connection in self._busy:  # not lost meanwhile
                self._busy.remove(connection)
                self._idle[connection] = None

    def asked(self, connection: Connection) -> None:
        """A stranger has asked for something."""
        if connection in self._silent:
            del self._silent[connection]
            self._idle[connection] = None


class Connection(asyncio.Protocol):
    """One connection, whose bytes go to the protocol `inner`. It is closed unless it asks for something in `head_s`."""

    def __init__(self, of: Connections, inner: asyncio.Protocol, head_s: float) -> None:
        self.of = of
        self.inner = inner
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._late = asyncio.get_running_loop().call_later(head_s, self.abort)
        of.add(self)

    def asked(self) -> None:
        """The head of a request has come."""
        self._late.cancel()
        self.of.asked(self)

    def abort(self) -> None:
        """Close it now, whatever it is about; a handshake, too."""
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
