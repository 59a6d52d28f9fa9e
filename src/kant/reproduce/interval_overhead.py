"""Interval overhead: how jobs run in the simulator of Muri. It implements `Speed` of `sim/speed.py`."""

from __future__ import annotations

from typing import ClassVar

from kant.model.units import FOREVER
from kant.placement.cost.communication import FULL


class IntervalOverhead:
    """Every running job loses its overhead in every interval between two events, except in its last one.

    Source: Muri's simulator (Zhao et al., SIGCOMM 2022). An interval shorter than the overhead gives no progress; the
    end of a job is projected at full speed. Preempting and moving have no cost of their own. Jobs that end within a
    relative distance of `merge` of the earliest end with it.
    """

    reports: ClassVar[bool] = True

    def __init__(self, merge: float) -> None:
        self.merge = merge
        self._left: dict[int, int] = {}
        self._overhead: dict[int, int] = {}
        self._running: dict[int, None] = {}
        self._updated = 0

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1, done: int = 0) -> None:
        self._left[row] = runtime
        self._overhead[row] = overhead

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        self._running[row] = None

    def behind(self, row: int, now: int) -> int:
        return 0  # the job's remaining work is reported at every event

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        del self._running[row]
        return 0

    def dropped(self, row: int) -> None:
        del self._running[row], self._left[row], self._overhead[row]

    def left(self, row: int) -> int:
        return self._left[row]

    @property
    def next_end(self) -> int:
        return self._updated + min((self._left[row] for row in self._running), default=FOREVER)

    def take_ended(self, now: int) -> list[int]:
        latest = now + int(now * self.merge) - self._updated
        ended = [row for row in self._running if self._left[row] <= latest] if self.next_end == now else []
        for row in ended:
            self.dropped(row)
        return ended

    def progress(self, now: int) -> list[tuple[int, int]]:
        elapsed = now - self._updated
        self._updated = now
        for row in self._running:
            self._left[row] -= max(elapsed - self._overhead[row], 0)
        return [(row, self._left[row]) for row in self._running]
