"""Answers that take long are told again for a while: the scheduler, in whose thread they are found, has more to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LONG = 0.05
"""Seconds that an answer may take and still be found anew each time."""

SELDOM = 20
"""One that took longer is told for so many times as long."""


class Calm(Generic[T]):
    """Keeps one answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._until = 0.0
        self._kept: T

    def told(self, find: Callable[[], T]) -> T:
        """The answer, found anew or not."""
        began = self.clock()
        if began >= self._until:
            self._kept = find()
            took = self.clock() - began
            self._until = began + (SELDOM * took if took > LONG else 0.0)
        return self._kept
