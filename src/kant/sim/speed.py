"""How jobs run in simulated time: when each ends, and the cost of an interruption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from kant.cluster.columns import Table, longer
from kant.model.units import FOREVER, SECOND
from kant.placement.cost.communication import FULL
from kant.sim.ends import NOT_RUNNING, add_end, next_end, take_due


class Speed(Protocol):
    """The true run times. Rows are those of the job table; times are microseconds."""

    reports: ClassVar[bool]
    """Whether running jobs must report their `progress`, since the scheduler cannot know it."""

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1, done: int = 0) -> None:
        """Register a job. `ceiling`: the pods with which an elastic gang needs `runtime`; 1 for others.

        `done`: the pod-microseconds of `runtime` times `ceiling` that a gang has already done.
        """
        ...

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        """Start the job now; each thousand microseconds of its work take `slowdown` microseconds.

        `pods`: the current pods of an elastic gang; 1 for others.
        """
        ...

    def behind(self, row: int, now: int) -> int:
        """Return how far the work done by a running job is behind the time since it started, µs."""
        ...

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        """Stop the job before its end; return the extra work that this causes, µs.

        With `saves` the job saves its work first. A change of size is a stop followed by a start.
        """
        ...

    def dropped(self, row: int) -> None:
        """Remove a running job for good before its end."""
        ...

    def left(self, row: int) -> int:
        """Return the remaining work of a waiting job, microseconds at full speed and size."""
        ...

    @property
    def next_end(self) -> int:
        """When the next running job ends; FOREVER if none runs."""
        ...

    def take_ended(self, now: int) -> list[int]:
        """Remove and return the jobs that end at `now`."""
        ...

    def progress(self, now: int) -> list[tuple[int, int]]:
        """Return (row, remaining work) of the running jobs whose progress the scheduler cannot know by itself."""
        ...


class ResumeCost:
    """The extra work of a preempted job, from steps (GPUs, seconds): the first with at least the job's GPUs counts."""

    def __init__(self, steps: tuple[tuple[int, float], ...]) -> None:
        self.steps = sorted((gpus, round(seconds * SECOND)) for gpus, seconds in steps)

    def of(self, gpus: int) -> int:
        for limit, cost in self.steps:
            if gpus <= limit:
                return cost
        return self.steps[-1][1] if self.steps else 0


class _Run(NamedTuple):
    """One run of a job, at one speed. `pods`: the pods of an elastic gang; 1 for others."""

    began: int
    end: int
    slowdown: int
    pods: int


class Steady:
    """A job runs at one speed from start to end. A stop costs it the extra work given by `cost`, and its unsaved work.

    A job saves its work every `checkpoint` microseconds of running; 0: never; None: at every moment. Work is counted in
    whole microseconds at full speed: when a job stops, a microsecond begun is lost. Work of an elastic gang is counted
    in pod-microseconds, of which p pods do p in a microsecond, so it is exact at any size.
    """

    reports: ClassVar[bool] = False

    def __init__(self, cost: ResumeCost, checkpoint: int | None = None) -> None:
        self.cost = cost
        self.checkpoint = checkpoint
        self._left: dict[int, int] = {}
        self._ceiling: dict[int, int] = {}  # the maximum pods of each elastic gang
        self._runs: dict[int, _Run] = {}
        self.heap: Table = np.zeros((64, 2), dtype=np.int64)
        """When jobs end (`sim/ends.py`)."""
        self.ends: Table = np.full(64, NOT_RUNNING, dtype=np.int64)
        """When each job ends, by its row."""
        self.next_end = FOREVER
        self._due: Table = np.zeros(64, dtype=np.int64)

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1, done: int = 0) -> None:
        self._left[row] = runtime * ceiling - done
        if ceiling > 1:
            self._ceiling[row] = ceiling

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        end = now + -(-self._left[row] * slowdown // (FULL * pods))
        self._runs[row] = _Run(now, end, slowdown, pods)
        if row >= len(self.ends) or self.heap.item(0, 0) + 1 >= len(self.heap):
            self.reserve(row + 1, 1)
        add_end(self.heap, self.ends, row, end)
        if end < self.next_end:
            self.next_end = end

    def reserve(self, jobs: int, runs: int) -> None:
        """Make room for `jobs` jobs in all, and for `runs` more running jobs."""
        known = len(self.ends)
        if jobs > known:
            self.ends = longer(self.ends, jobs)
            self.ends[known:] = NOT_RUNNING
        entries = self.heap.item(0, 0) + runs + 1
        if entries > len(self.heap):
            self.heap = longer(self.heap, entries)
            self._due = np.zeros(len(self.heap), dtype=np.int64)

    def moved(self) -> None:
        """Update `next_end` after the heap has changed."""
        self.next_end = next_end(self.heap, self.ends)

    def follow(self, row: int, now: int) -> None:
        """Record that a job runs from `now` on; the heap has its end already."""
        self._runs[row] = _Run(now, now + self._left[row], FULL, 1)

    def evicted(self, row: int, left: int) -> None:
        """Record that a job was stopped with `left` work left; the heap already reflects this."""
        self._runs.pop(row, None)
        self._left[row] = left

    def forget(self, row: int) -> None:
        """Remove a job that has ended; the heap already reflects this."""
        self._runs.pop(row, None)
        del self._left[row]

    def behind(self, row: int, now: int) -> int:
        run = self._runs[row]
        ran = now - run.began
        return ran - ran * FULL // run.slowdown

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        began, _, slowdown, pods = self._runs.pop(row)
        self.ends[row] = NOT_RUNNING
        self.moved()
        ran = now - began
        done = saved = ran * FULL * pods // slowdown
        if self.checkpoint is not None and not saves:
            saved = (ran - ran % self.checkpoint) * FULL * pods // slowdown if self.checkpoint else 0
        ceiling = self._ceiling.get(row, 1)
        extra = self.cost.of(gpus) - (saved - done) // ceiling
        self._left[row] += extra * ceiling - done
        return extra

    def dropped(self, row: int) -> None:
        self.forget(row)
        self.ends[row] = NOT_RUNNING
        self.moved()

    def left(self, row: int) -> int:
        return -(-self._left[row] // self._ceiling.get(row, 1))

    def left_of_all(self, rows: Iterable[int]) -> list[int]:
        """Return the remaining work of waiting jobs none of which is elastic."""
        return [*map(self._left.__getitem__, rows)]

    def take_ended(self, now: int) -> list[int]:
        due = self._due
        ended: list[int] = due[1 : take_due(self.heap, self.ends, now, due) + 1].tolist()
        self.next_end = due.item(0)
        for row in ended:
            del self._runs[row], self._left[row]
        return ended

    def progress(self, now: int) -> list[tuple[int, int]]:
        return []


class Endless:
    """A speed for static packing: no job ever ends."""

    reports: ClassVar[bool] = False
    next_end = FOREVER

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1, done: int = 0) -> None:
        pass

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        pass

    def behind(self, row: int, now: int) -> int:
        return 0

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        return 0

    def dropped(self, row: int) -> None:
        pass

    def left(self, row: int) -> int:
        return FOREVER

    def take_ended(self, now: int) -> list[int]:
        return []

    def progress(self, now: int) -> list[tuple[int, int]]:
        return []
