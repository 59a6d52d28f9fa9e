"""Answers that take long: found in slices, between which the scheduler's thread does its own work, and then cached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from kant.insight.cooperative import OutdatedError, Task, TaskRun

T = TypeVar("T")
Clock = Callable[[], float]

SLICE = 0.005
"""Seconds of work after which the task pauses, for as long as the work took."""

LONG = 0.05
"""Seconds of work up to which an answer is not cached."""

SELDOM = 20
"""An answer that took longer is cached for so many times as long."""


async def run_cooperatively(find: Callable[[], Task[T]], clock: Clock = time.perf_counter) -> tuple[T, float]:
    """What `find` finds, and the seconds of work that it took. Starts again if the state changes too much."""
    worked = 0.0
    while True:
        work = TaskRun(find())
        try:
            while True:
                began = clock()
                done = work.advance(lambda began=began: clock() - began < SLICE)  # type: ignore[misc]
                took = clock() - began
                worked += took
                if done:
                    return work.found, worked
                await asyncio.sleep(took)
        except OutdatedError:
            await asyncio.sleep(SLICE)


class CachedAnswer(Generic[T]):
    """Keeps one answer. All who ask while it is being found get the answer that is under way."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._until = float("-inf")
        self._kept: T
        self._finding: asyncio.Task[T] | None = None

    async def get(self, find: Callable[[], Task[T]]) -> T:
        """The answer: the kept one while it is fresh enough, else a new one."""
        if self._finding is None:
            if self.clock() < self._until:
                return self._kept
            self._finding = asyncio.create_task(self._find(find))
            self._finding.add_done_callback(self._found)
        return await asyncio.shield(self._finding)  # for others, too: it goes on without the one who has asked first

    async def _find(self, find: Callable[[], Task[T]]) -> T:
        self._kept, took = await run_cooperatively(find, self.clock)
        self._until = self.clock() + (SELDOM * took if took > LONG else 0.0)
        return self._kept

    def _found(self, task: asyncio.Task[T]) -> None:
        self._finding = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may
