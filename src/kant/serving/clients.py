"""Clients that wait for their answers before they ask again, and those that give up when answers come too late."""

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
"""Times that a client sends a request before this cannot end well."""


class ClosedLoop:
    """So many clients that each take the next of `count` requests when theirs is over.

    `begin` and `after` are those of `kant.serving.fleet.simulate`; `again`, of `Patience`, puts a request at the end of
    the queue, `most` times.
    """

    def __init__(self, count: int, clients: int, most: int = MOST_SENT) -> None:
        self.begin = list(range(min(clients, count)))
        self._queue = deque(range(len(self.begin), count))
        self._most = most
        self.sent = [1] * count
        """How often each request has been sent."""

    def after(self, _: int, now: float) -> list[tuple[float, int]]:
        """What follows a request that is over."""
        return [(now, self._queue.popleft())] if self._queue else []

    def again(self, i: int) -> None:
        """Request `i` was in vain, and will be sent again. Raises InputError where that has no end."""
        self.sent[i] += 1
        if self.sent[i] > self._most:
            raise InputError("the patience of clients", f"requests that are answered in time once in {self._most}", i)
        self._queue.append(i)


@dataclass(frozen=True, slots=True)
class Patience:
    """When clients give up: no first token after `ttft_s`, or none for `gap_s` after another, both in seconds.

    An engine lets such requests go; where `begun` is False it goes on with those that have a token, in vain. `again` is
    told of each that was in vain, before `after` of `kant.serving.fleet.simulate` says what follows it. Policies hear
    nothing of those that are let go.
    """

    ttft_s: float
    gap_s: float
    again: Callable[[int], None]
    begun: bool = True

    def in_vain(self, engine: Engine, rows: Table) -> Table:
        """Which of these requests have broken an objective."""
        times, now = engine.times[rows], engine.now
        first = np.where(np.isnan(times[:, c.FIRST]), now, times[:, c.FIRST])
        since = np.where(np.isnan(times[:, c.FINISH]), now - times[:, c.LAST], 0.0)
        found = (first - times[:, c.ARRIVAL] > self.ttft_s) | (np.fmax(times[:, c.GAP], since) > self.gap_s)
        return np.asarray(found)

    def let_go(self, engine: Engine) -> list[int]:
        """Requests that an engine has and lets go now; none of them is in a step."""
        live = np.concatenate([engine.running[: engine.state[c.RUNS]], engine.waiting[: engine.state[c.WAITS]]])
        if not self.begun:
            live = live[np.isnan(engine.times[live, c.FIRST])]
        found: list[int] = live[self.in_vain(engine, live)].tolist()
        return found
