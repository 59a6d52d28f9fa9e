"""Answers that take long: found in slices, beside the scheduler in whose thread that happens, and told for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from kant.scheduler.steps import Outdated, Steps, Work

T = TypeVar("T")
Clock = Callable[[], float]

SLICE = 0.005
"""Seconds of work after which others have their turn, for as long."""

LONG = 0.05
"""Seconds of work that an answer may take and still be found anew each time."""

SELDOM = 20
"""One that took longer is told for so many times as long."""


async def in_slices(find: Callable[[], Steps[T]], clock: Clock = time.perf_counter) -> tuple[T, float]:
    """What `find` finds, and the seconds of work that it took. Begins anew where too much happens meanwhile."""
    worked = 0.0
    while True:
        work = Work(find())
        try:
            while True:
                began = clock()
                done = work.go_on(lambda began=began: clock() - began < SLICE)  # type: ignore[misc]
                took = clock() - began
                worked += took
                if done:
                    return work.found, worked
                await asyncio.sleep(took)
        except Outdated:
            await asyncio.sleep(SLICE)


class Calm(Generic[T]):
    """Keeps one answer. Whoever asks while it is being found waits for that one."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._until = float("-inf")
        self._kept: T
        self._finding: asyncio.Task[T] | None = None

    async def told(self, find: Callable[[], Steps[T]]) -> T:
        """The answer, found anew or not."""
        if self._finding is None:
            if self.clock() < self._until:
                return self._kept
            self._finding = asyncio.create_task(self._find(find))
            self._finding.add_done_callback(self._found)
        return await asyncio.shield(self._finding)  # for others, too: it goes on without the one who has asked first

    async def _find(self, find: Callable[[], Steps[T]]) -> T:
        self._kept, took = await in_slices(find, self.clock)
        self._until = self.clock() + (SELDOM * took if took > LONG else 0.0)
        return self._kept

    def _found(self, task: asyncio.Task[T]) -> None:
        self._finding = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may
