"""Three streams of one GPU: messages between nodes, messages inside a node, and arithmetic.

A stream runs its tasks one after the other, in issue order, each as soon as its predecessor on another stream has
ended. While both message streams run, each has `contention` times its full speed: they share the path to the network
(FSMoE, Pan et al., ASPLOS 2025, assumes 1). Arithmetic always goes at full speed.

Only sums, differences, products, quotients and comparisons of floats are used, so results are equal on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once, inlined

Floats = NDArray[np.float64]

INTER, INTRA, COMPUTE = 0, 1, 2
STREAMS = ("between nodes", "inside nodes", "arithmetic")


class StreamTask(NamedTuple):
    """`work` seconds at full speed on a stream, starting once task `after` (its index; -1: none) has ended."""

    name: str
    stream: int
    work: float
    after: int = -1


class StreamTimes(NamedTuple):
    """When each task starts and ends, in seconds."""

    tasks: tuple[StreamTask, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    contention: float

    @property
    def seconds(self) -> float:
        """Return when the last task ends."""
        return max(self.ends, default=0.0)

    def later(self, seconds: float) -> StreamTimes:
        """Return the same run shifted by `seconds`."""
        starts, ends = (tuple(time + seconds for time in times) for times in (self.starts, self.ends))
        return self._replace(starts=starts, ends=ends)

    def busy(self, stream: int) -> float:
        """Return the seconds during which a stream runs a task."""
        spans = zip(self.tasks, self.starts, self.ends, strict=True)
        return sum(end - start for task, start, end in spans if task.stream == stream)


@inlined
def play(work: Floats, stream: Table, after: Table, count: int, contention: float, start: Floats, end: Floats) -> float:
    """Write when each of the first `count` tasks starts and ends; return when the last ends.

    The tasks of each stream are in issue order. `after` has the task that each task waits for, which must be an earlier
    one (-1: none).
    """
    at = np.zeros(3, dtype=np.int64)  # the task of each stream that runs or is next
    left = np.zeros(3)
    running = np.zeros(3, dtype=np.bool_)
    for i in range(count):
        end[i] = -1.0
    now = 0.0
    for s in range(3):
        at[s] = -1
    over = 0
    while over < count:
        for s in range(3):
            if not running[s]:
                if at[s] < 0 or (at[s] < count and end[at[s]] >= 0.0):
                    at[s] += 1
                    while at[s] < count and stream[at[s]] != s:
                        at[s] += 1
                i = at[s]
                if i < count and (after[i] < 0 or end[after[i]] >= 0.0):
                    running[s] = True
                    left[s] = work[i]
                    start[i] = now
        share = contention if running[0] and running[1] else 1.0
        step = np.inf
        for s in range(3):
            if running[s]:
                step = min(step, left[s] / (share if s < 2 else 1.0))
        now += step
        for s in range(3):
            if running[s]:
                rate = share if s < 2 else 1.0
                if left[s] / rate <= step:
                    running[s] = False
                    end[at[s]] = now
                    over += 1
                else:
                    left[s] -= step * rate
    return now


@compiled_at_once
def _play(work: Floats, stream: Table, after: Table, contention: float, start: Floats, end: Floats) -> float:
    return play(work, stream, after, len(work), contention, start, end)


def run(tasks: tuple[StreamTask, ...], contention: float) -> StreamTimes:
    """Run these tasks on the streams."""
    work = np.array([task.work for task in tasks], dtype=np.float64)
    stream = np.array([task.stream for task in tasks], dtype=np.int64)
    after = np.array([task.after for task in tasks], dtype=np.int64)
    start, end = np.zeros(len(tasks)), np.zeros(len(tasks))
    if tasks:
        _play(work, stream, after, contention, start, end)
    return StreamTimes(tasks, tuple(start.tolist()), tuple(end.tolist()), contention)
