"""The waiting jobs in lanes. The head of a lane stands for all behind it: if it does not fit, none is tried.

Strict FIFO has one lane for each queue. Best-effort FIFO has one for each shape in each queue, because what does
not fit for one job does not fit for another that asks for the very same: so a cycle tries each shape once and never
walks the whole queue. A verdict "does not fit" is kept until capacity comes free in a pool of the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np

from kant.cluster.columns import J_PRIORITY, J_QUEUE, J_SHAPE
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing.order import Order

Entry = tuple[int, Any, int, int]
"""(-priority, key of the order, row, shape): rows are in order of arrival, so they are the tie-break."""

Lane = list[Entry]
"""A heap of waiting jobs."""

LaneKey = Callable[[int, int], tuple[int, ...]]
"""From the queue and the shape of a job to its lane."""


class Waiting:
    """The waiting jobs of a `ClusterState`, following what it lists in `entered`; without `lane_key` unsorted."""

    def __init__(self, state: ClusterState, order: Order, lane_key: LaneKey | None) -> None:
        self.state = state
        self.order = order
        self.lane_key = lane_key
        self.lanes: dict[tuple[int, ...], Lane] = {}
        self.arrived: list[int] = []  # not yet seen by a cycle
        self.leaving: set[int] = set()  # rejected in this cycle, not yet gone from the state
        self.held: set[int] = set()  # waiting jobs whose hold has been said
        self._blocked: dict[int, int] = {}  # shape -> how often its pools had been freed when it did not fit
        self._touched: set[tuple[int, ...]] = set()  # lanes that got a job since the last walk
        self._backlog: list[int] = list(state.pending)
        self._seen = len(state.entered)
        self._mark = (-1, -1)  # openings, and changes where they count, at the last walk over all lanes
        self._any_change_counts = False  # some blocked shape has several groups

    def refresh(self) -> None:
        """Take in the jobs that came to wait since the last time."""
        self.leaving.clear()
        entered, pending = self.state.entered, self.state.pending
        rows = self._backlog
        if len(entered) > self._seen:
            rows += [row for row in entered[self._seen :] if row in pending]
            self._seen = len(entered)
        if rows:
            self._push(rows)
            self.arrived += rows
            self._backlog = []

    def _push(self, rows: list[int]) -> None:
        self.held.difference_update(rows)
        if self.lane_key is None:
            return
        jobs = self.state.jobs
        keys = self.order.keys(jobs, np.array(rows, dtype=np.int64), self.state.now).tolist()
        for row, key in zip(rows, keys, strict=True):
            shape = int(jobs[row, J_SHAPE])
            lane_key = self.lane_key(int(jobs[row, J_QUEUE]), shape)
            lane = self.lanes.get(lane_key)
            if lane is None:
                lane = self.lanes[lane_key] = []
            heappush(lane, (-int(jobs[row, J_PRIORITY]), key, row, shape))
            self._touched.add(lane_key)

    def leave(self, row: int) -> None:
        """The plan rejects this job: nobody tries it any more."""
        self.leaving.add(row)

    def walk(self) -> Iterator[tuple[int, Shape, Lane]]:
        """Each head that may be tried now, best first over all lanes.

        The caller calls `took` or `block` before it asks for the next one. Every lane ends up empty or blocked, so
        unless something has opened since the last walk only lanes with new jobs need a look.
        """
        keys: Iterable[tuple[int, ...]] = self._touched
        mark = (self.state.openings, int(self.state.log[0]) if self._any_change_counts else -1)
        if self._mark != mark:
            self._mark = mark
            keys = list(self.lanes)
        ready: list[tuple[Entry, Lane]] = []
        for key in keys:
            lane = self.lanes[key]
            if self._is_open(lane):
                ready.append((lane[0], lane))
            elif not lane:
                del self.lanes[key]
        self._touched = set()
        heapify(ready)
        shapes = self.state.shapes.shapes
        try:
            while ready:
                head, lane = ready[0]
                if not self._blocks(head[3]):
                    yield head[2], shapes[head[3]], lane
                if self._is_open(lane):
                    heapreplace(ready, (lane[0], lane))
                else:
                    heappop(ready)
        finally:
            if ready:  # the caller left early: some lanes have not been looked at
                self._mark = (-1, -1)

    def head_before(self, row: int) -> int | None:
        """The job that blocks this one: the head of its lane, unless it is the head itself."""
        if self.lane_key is None:
            return None
        jobs, pending = self.state.jobs, self.state.pending
        lane = self.lanes.get(self.lane_key(int(jobs[row, J_QUEUE]), int(jobs[row, J_SHAPE])), [])
        while lane and lane[0][2] not in pending:
            heappop(lane)
        return lane[0][2] if lane and lane[0][2] != row else None

    def took(self, lane: Lane) -> None:
        """The head starts, or leaves. A driver that refuses the start brings it back by an event."""
        heappop(lane)

    def block(self, shape: Shape) -> None:
        """This shape does not fit, and will not before capacity comes free."""
        self._blocked[shape.index] = self._freed(shape)
        if len(shape.parts) > 1:
            self._any_change_counts = True

    def _is_open(self, lane: Lane) -> bool:
        """Whether the lane has a head, and nothing is known against it."""
        pending, leaving = self.state.pending, self.leaving
        while lane and (lane[0][2] not in pending or lane[0][2] in leaving):
            heappop(lane)
        return bool(lane) and not self._blocks(lane[0][3])

    def _blocks(self, shape: int) -> bool:
        at = self._blocked.get(shape)
        return at is not None and at == self._freed(self.state.shapes.shapes[shape])

    def _freed(self, shape: Shape) -> int:
        """What must not change for a verdict on the shape to hold: capacity that came free in its pools.

        A gang of several groups may even come to fit when something is taken, because its groups are placed one
        after the other; for such a shape the verdict holds until any node changes.
        """
        if len(shape.parts) > 1:
            return int(self.state.log[0])
        freed = self.state.freed
        if len(shape.pools) == 1:
            return freed[shape.pools[0]]
        return sum(freed[pool] for pool in shape.pools)
