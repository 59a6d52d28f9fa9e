"""Simulated clients that wait for each response."""

from __future__ import annotations

from collections import deque

from kant.model.errors import InputError

MOST_SENT = 10_000
"""The most attempts of one request; beyond that the simulation would not end."""


class ClosedLoop:
    """A number of clients that each take the next of `count` requests when theirs has ended.

    `begin` and `after` are those of `kant.serving.fleet.simulate`; `again`, for `Patience`, puts a request at the end
    of the queue, at most `most` times.
    """

    def __init__(self, count: int, clients: int, most: int = MOST_SENT) -> None:
        self.begin = list(range(min(clients, count)))
        self._queue = deque(range(len(self.begin), count))
        self._most = most
        self.sent = [1] * count
        """The number of attempts of each request."""

    def after(self, _: int, now: float) -> list[tuple[float, int]]:
        """Return the request that follows one that has ended."""
        return [(now, self._queue.popleft())] if self._queue else []

    def again(self, i: int) -> None:
        """Queue a failed request `i` again. Raises InputError if it has been sent too often."""
        self.sent[i] += 1
        if self.sent[i] > self._most:
            raise InputError("the patience of clients", f"requests that are answered in time once in {self._most}", i)
        self._queue.append(i)
