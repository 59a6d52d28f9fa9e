"""Timeouts of engines: to the first byte, between two pieces of the response, and in total."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kant.gateway.upstream import UpstreamError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; 0: no limit.

    `first_byte_s`: from sending a request to the first byte of the response body. If the response streams, this is its
    first token; otherwise its last. `idle_s`: between two pieces. `total_s`: from the arrival of a request to the end
    of its response, including the wait in the router.
    """

    first_byte_s: float = 600.0
    idle_s: float = 300.0
    total_s: float = 0.0


class TimedOutError(UpstreamError):
    """A backend exceeded a timeout. `stalled`: it sent nothing for too long; otherwise its response took too long."""

    def __init__(self, why: str, stalled: bool) -> None:
        super().__init__(why)
        self.stalled = stalled


class Stopwatch:
    """Watches one response, and calls `expired` once with the error. Recording a piece reads the clock once."""

    def __init__(self, timeouts: Timeouts, began: float, expired: Callable[[TimedOutError], None]) -> None:
        self.timeouts, self.expired = timeouts, expired
        self.last = time.monotonic()
        self.begun = False
        self.end = began + (timeouts.total_s or math.inf)
        self.timer: asyncio.TimerHandle | None = None
        self._look()

    def piece_arrived(self) -> None:
        """Record that a piece has arrived."""
        self.last = time.monotonic()
        if not self.begun:
            self.begun = True
            self.stop()
            self._look()

    def stop(self) -> None:
        """Stop watching."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _look(self) -> None:
        """Report an expired timeout, or schedule the next check."""
        allowed = self.timeouts.idle_s if self.begun else self.timeouts.first_byte_s
        due = min(self.last + (allowed or math.inf), self.end)
        left = due - time.monotonic()
        if left > 0:
            if due < math.inf:
                self.timer = asyncio.get_running_loop().call_later(left, self._look)
            return
        self.timer = None
        if due == self.end:
            self.expired(TimedOutError(f"it has not ended after {self.timeouts.total_s:g} seconds", False))
        elif self.begun:
            self.expired(TimedOutError(f"it has sent nothing more for {allowed:g} seconds", True))
        else:
            self.expired(TimedOutError(f"it has sent nothing for {allowed:g} seconds", True))
