"""Simulated clients that wait for each response, or give up when it is too late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import Engine

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


@dataclass(frozen=True, slots=True)
class Patience:
    """When clients give up: no first token within `ttft_s`, or no next token within `gap_s`, both in seconds.

    An engine drops such requests; if `begun` is False, it completes those that already have a token, uselessly. `again`
    is called for each failed request, before `after` of `kant.serving.fleet.simulate` says what follows. Policies are
    not told of dropped requests.
    """

    ttft_s: float
    gap_s: float
    again: Callable[[int], None]
    begun: bool = True

    def in_vain(self, engine: Engine, rows: Table) -> Table:
        """Return which of these requests have missed an objective."""
        times, now = engine.times[rows], engine.now
        first = np.where(np.isnan(times[:, c.FIRST]), now, times[:, c.FIRST])
        since = np.where(np.isnan(times[:, c.FINISH]), now - times[:, c.LAST], 0.0)
        found = (first - times[:, c.ARRIVAL] > self.ttft_s) | (np.fmax(times[:, c.GAP], since) > self.gap_s)
        return np.asarray(found)

    def let_go(self, engine: Engine) -> list[int]:
        """Return the requests that an engine drops now; none of them is in a step."""
        live = np.concatenate([engine.running[: engine.state[c.RUNS]], engine.waiting[: engine.state[c.WAITS]]])
        if not self.begun:
            live = live[np.isnan(engine.times[live, c.FIRST])]
        found: list[int] = live[self.in_vain(engine, live)].tolist()
        return found
