"""The waiting jobs in lanes. The head of a lane stands for all behind it: if it does not fit, none is tried.

Strict FIFO has one lane for each queue. Best-effort FIFO has one for each shape in each queue, because what does
not fit for one job does not fit for another that asks for the very same: so a cycle tries each shape once and never
walks the whole queue. A verdict "does not fit" is kept until capacity comes free in a pool of the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np

from kant.cluster.columns import J_PRIORITY, J_QUEUE, J_SHAPE
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing.order import Order

Entry = tuple[int, Any, int]
"""(-priority, key of the order, row): rows are in order of arrival, so the last part is the tie-break."""

LaneKey = Callable[[int, int], tuple[int, ...]]
"""From the queue and the shape of a job to its lane."""


class Lane:
    """One sequence of waiting jobs, and the verdict on its head."""

    __slots__ = ("blocked_at", "blocked_shape", "heap", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[Entry] = []
        self.blocked_shape = -1
        self.blocked_at = -1


class Waiting:
    """The waiting jobs of a `ClusterState`, sorted, following what it lists in `entered`."""

    def __init__(self, state: ClusterState, order: Order, lane_key: LaneKey) -> None:
        self.state = state
        self.order = order
        self.lane_key = lane_key
        self.lanes: dict[tuple[int, ...], Lane] = {}
        self.busy: dict[int, Lane] = {}  # lanes with jobs, by number
        self.arrived: list[int] = []  # came in since the last cycle
        self.leaving: set[int] = set()  # rejected in this cycle, not yet gone from the state
        self.held: set[int] = set()  # waiting jobs whose hold has been said
        self._backlog: list[int] = list(state.pending)
        self._seen = len(state.entered)

    def refresh(self) -> None:
        """Take in the jobs that came to wait since the last time."""
        self.leaving.clear()
        entered, pending = self.state.entered, self.state.pending
        self.arrived = self._backlog
        if len(entered) > self._seen:
            self.arrived += [row for row in entered[self._seen :] if row in pending]
            self._seen = len(entered)
        self._backlog = []
        if self.arrived:
            self._push(self.arrived)

    def _push(self, rows: list[int]) -> None:
        jobs = self.state.jobs
        keys = self.order.keys(jobs, np.array(rows, dtype=np.int64), self.state.now).tolist()
        self.held.difference_update(rows)
        for row, key in zip(rows, keys, strict=True):
            job = jobs[row]
            lane_key = self.lane_key(int(job[J_QUEUE]), int(job[J_SHAPE]))
            lane = self.lanes.get(lane_key)
            if lane is None:
                lane = self.lanes[lane_key] = Lane(len(self.lanes))
            heappush(lane.heap, (-int(job[J_PRIORITY]), key, row))
            self.busy[lane.number] = lane

    def leave(self, row: int) -> None:
        """The plan rejects this job: nobody tries it any more."""
        self.leaving.add(row)

    def walk(self) -> Iterator[tuple[int, Shape, Lane]]:
        """Each head that may be tried now, best first over all lanes.

        The caller calls `took` or `block` before it asks for the next one.
        """
        ready: list[tuple[Entry, int, Lane]] = []
        for lane in list(self.busy.values()):
            head = self._open_head(lane)
            if head is not None:
                ready.append((head, lane.number, lane))
        heapify(ready)
        shapes, jobs = self.state.shapes.shapes, self.state.jobs
        while ready:
            lane = ready[0][2]
            row = ready[0][0][2]
            yield row, shapes[jobs[row, J_SHAPE]], lane
            head = self._open_head(lane)
            if head is None:
                heappop(ready)
            else:
                heapreplace(ready, (head, lane.number, lane))

    def took(self, lane: Lane) -> None:
        """The head starts, or leaves. A driver that refuses the start brings it back by an event."""
        heappop(lane.heap)

    def block(self, lane: Lane, shape: Shape) -> None:
        """The head does not fit, and will not before capacity comes free."""
        lane.blocked_shape = shape.index
        lane.blocked_at = self._freed(shape)

    def _open_head(self, lane: Lane) -> Entry | None:
        """The head of the lane unless the lane is empty or blocked."""
        heap, pending, leaving = lane.heap, self.state.pending, self.leaving
        while heap and (heap[0][2] not in pending or heap[0][2] in leaving):
            heappop(heap)
        if not heap:
            self.busy.pop(lane.number, None)
            return None
        head = heap[0]
        if lane.blocked_at >= 0:
            shape = self.state.jobs[head[2], J_SHAPE]
            if shape == lane.blocked_shape and lane.blocked_at == self._freed(self.state.shapes.shapes[shape]):
                return None
        return head

    def _freed(self, shape: Shape) -> int:
        freed = self.state.freed
        if len(shape.pools) == 1:
            return freed[shape.pools[0]]
        return sum(freed[pool] for pool in shape.pools)
