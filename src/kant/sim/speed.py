"""How jobs run in simulated time: when each one ends, and what an interruption costs it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from kant.model.units import FOREVER, SECOND
from kant.placement.communication import FULL


class Speed(Protocol):
    """The truth about run times. Rows are those of the job table; times are microseconds."""

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1) -> None:
        """A job has come. `ceiling` is the pods with which an elastic gang needs `runtime`; 1 for others."""
        ...

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        """The job runs from now on, each thousand microseconds of its work in `slowdown` of time.

        An elastic gang with so many `pods`; others always with 1.
        """
        ...

    def behind(self, row: int, now: int) -> int:
        """By how much the work that a running job has done is less than the time since it started."""
        ...

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        """The job is stopped before its end; returns the extra work that this costs it.

        With `saves` it may save its work before. A change of size is to be stopped and started.
        """
        ...

    def dropped(self, row: int) -> None:
        """A running job leaves for good before its end."""
        ...

    def next_end(self) -> int:
        """When the next running job ends; FOREVER when none runs."""
        ...

    def take_ended(self, now: int) -> list[int]:
        """The jobs that end at `now`, which then no longer run."""
        ...

    def progress(self, now: int) -> list[tuple[int, int]]:
        """(row, work left) of the running jobs whose progress the scheduler cannot know by itself."""
        ...


class ResumeCost:
    """Extra work for each preemption, by size: the first step whose limit is not below the job's GPUs."""

    def __init__(self, steps: tuple[tuple[int, float], ...]) -> None:
        self.steps = sorted((gpus, round(seconds * SECOND)) for gpus, seconds in steps)

    def of(self, gpus: int) -> int:
        for limit, cost in self.steps:
            if gpus <= limit:
                return cost
        return self.steps[-1][1] if self.steps else 0


class Steady:
    """A job runs at one speed from start to end. To be stopped costs it what `cost` says, and its unsaved work.

    It saves its work every `checkpoint` microseconds that it runs; 0: never; None: at every moment. Work is counted in
    whole microseconds at full speed: what has been begun of one when a job is stopped is done again. That of an elastic
    gang is counted in pod-microseconds: p pods do p of them in a microsecond, so it is exact at any size.
    """

    def __init__(self, cost: ResumeCost, checkpoint: int | None = None) -> None:
        self.cost = cost
        self.checkpoint = checkpoint
        self._left: dict[int, int] = {}
        self._ceiling: dict[int, int] = {}  # of elastic gangs
        self._began: dict[int, int] = {}  # of running jobs, as are their ends, slowdowns and (elastic) pods
        self._ends: dict[int, int] = {}
        self._slowdown: dict[int, int] = {}
        self._pods: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1) -> None:
        self._left[row] = runtime * ceiling
        if ceiling > 1:
            self._ceiling[row] = ceiling

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        end = now + -(-self._left[row] * slowdown // (FULL * pods))
        self._began[row], self._ends[row], self._slowdown[row] = now, end, slowdown
        if pods > 1:
            self._pods[row] = pods
        heappush(self._heap, (end, row))

    def behind(self, row: int, now: int) -> int:
        ran = now - self._began[row]
        return ran - ran * FULL // self._slowdown[row]

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        ran, slowdown, pods = now - self._began[row], self._slowdown[row], self._pods.pop(row, 1)
        done = saved = ran * FULL * pods // slowdown
        if self.checkpoint is not None and not saves:
            saved = (ran - ran % self.checkpoint) * FULL * pods // slowdown if self.checkpoint else 0
        ceiling = self._ceiling.get(row, 1)
        extra = self.cost.of(gpus) - (saved - done) // ceiling
        self._left[row] += extra * ceiling - done
        del self._began[row], self._ends[row], self._slowdown[row]
        return extra

    def dropped(self, row: int) -> None:
        """A running job leaves for good before its end."""
        del self._began[row], self._ends[row], self._slowdown[row], self._left[row]
        self._pods.pop(row, None)

    def next_end(self) -> int:
        heap, ends = self._heap, self._ends
        while heap and ends.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else FOREVER

    def take_ended(self, now: int) -> list[int]:
        ended: list[int] = []
        while self.next_end() == now:
            row = heappop(self._heap)[1]
            self.dropped(row)
            ended.append(row)
        return ended

    def progress(self, now: int) -> list[tuple[int, int]]:
        return []


class Endless:
    """Nothing ever ends: for static packing."""

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1) -> None:
        pass

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        pass

    def behind(self, row: int, now: int) -> int:
        return 0

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        return 0

    def dropped(self, row: int) -> None:
        pass

    def next_end(self) -> int:
        return FOREVER

    def take_ended(self, now: int) -> list[int]:
        return []

    def progress(self, now: int) -> list[tuple[int, int]]:
        return []


class IntervalOverhead:
    """Every running job loses its overhead in every interval between two events, except in its last one.

    The rule of Muri's simulator (Zhao et al., SIGCOMM 2022): an interval shorter than the overhead gives no
    progress; the end of a job is projected at full speed. Preempting and moving cost nothing by themselves. Jobs
    that end within a relative distance of `merge` of the earliest end with it.
    """

    def __init__(self, merge: float) -> None:
        self.merge = merge
        self._left: dict[int, int] = {}
        self._overhead: dict[int, int] = {}
        self._running: dict[int, None] = {}
        self._updated = 0

    def submitted(self, row: int, runtime: int, overhead: int, ceiling: int = 1) -> None:
        self._left[row] = runtime
        self._overhead[row] = overhead

    def started(self, row: int, now: int, slowdown: int = FULL, pods: int = 1) -> None:
        self._running[row] = None

    def behind(self, row: int, now: int) -> int:
        return 0  # what it has left is reported at every event

    def stopped(self, row: int, gpus: int, now: int, saves: bool = False) -> int:
        del self._running[row]
        return 0

    def dropped(self, row: int) -> None:
        del self._running[row], self._left[row], self._overhead[row]

    def next_end(self) -> int:
        return self._updated + min((self._left[row] for row in self._running), default=FOREVER)

    def take_ended(self, now: int) -> list[int]:
        latest = now + int(now * self.merge) - self._updated
        ended = [row for row in self._running if self._left[row] <= latest] if self.next_end() == now else []
        for row in ended:
            self.dropped(row)
        return ended

    def progress(self, now: int) -> list[tuple[int, int]]:
        elapsed = now - self._updated
        self._updated = now
        for row in self._running:
            self._left[row] -= max(elapsed - self._overhead[row], 0)
        return [(row, self._left[row]) for row in self._running]
