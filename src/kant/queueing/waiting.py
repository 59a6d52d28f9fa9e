"""The waiting jobs in lanes. The head of a lane stands for all behind it: if it does not fit, none is tried.

Strict FIFO has one lane for each queue. Best-effort FIFO has one for each shape in each queue, because what does
not fit for one job does not fit for another that asks for the very same: so a cycle tries each shape once and never
walks the whole queue. A verdict "does not fit" is kept until capacity comes free in a pool of the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster.columns import J_CORE, J_PRIORITY, J_QUEUE, J_RETURNS, J_SHAPE, J_USER
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing.hopeless import Hopeless
from kant.queueing.order import Order
from kant.queueing.requeue import Requeue

if TYPE_CHECKING:
    from kant.queueing.turn import Turn

Entry = tuple[int, Any, int, int]
"""(-priority, key of the order, row, shape): rows are in order of arrival, so they are the tie-break."""

LaneKey = tuple[int, ...]
"""The queue first, where the order is one of queues."""

Kind = int | tuple[int, ...]
"""Jobs that may do the same: those of a shape; of a shape, priority and core; or those of a lane."""

Share = Callable[[int], tuple[float, ...]]
"""What a queue has had of its share, so far in this cycle."""


class Waiting:
    """The waiting jobs of a `ClusterState`, following what moves there.

    `lane_of` says from queue and shape in which lane a job stands (None: nothing is sorted). A verdict holds for all
    jobs of a shape; with `preempts` for those of one priority, since they differ in whom they may stop. Where quotas
    are it holds for one job alone, and with `preempts` only until any job moves: who starts or leaves may change what
    a queue is entitled to take back.
    """

    def __init__(
        self,
        state: ClusterState,
        order: Order,
        requeue: Requeue,
        lane_of: Callable[[int, int], LaneKey] | None,
        preempts: bool = False,
    ) -> None:
        self.state = state
        self.order = order
        self.requeue = requeue
        self.lane_of = lane_of
        self.preempts = preempts
        self.lanes: dict[LaneKey, list[Entry]] = {}
        self.arrived: list[int] = []  # not yet seen by a cycle
        self.leaving: set[int] = set()  # rejected in this cycle, not yet gone from the state
        self._sorted: set[int] = set()  # who stands in a lane
        self._cores: dict[int, bool] = {}  # whether a core runs as the plan leaves it, if it starts or stops it
        self.held: set[int] = set()  # waiting jobs whose hold has been said
        self._later: list[tuple[int, int]] = []  # heap of (when it may be tried again, row)
        self._until: dict[int, int] = {}  # of each row in it, as last said
        self._blocked: dict[Kind, tuple[int, int, int]] = {}  # verdicts: stamp, until when at most, on whom
        self._touched: set[LaneKey] = set()  # lanes that got a job since the last walk
        self.hopeless = Hopeless(state)
        self.now = state.now
        self._seen = -1
        self._mark = (-1, -1, -1, -1)  # openings, changes where they count, refunds, moves at the last full walk
        self._by_user = False  # lanes are of one user each
        self._any_change_counts = False  # some blocked shape has several groups
        self.retry_at = -1  # when a verdict ends by itself, of those there are

    # --- following the state ---------------------------------------------------------------------------------

    def refresh(self, now: int) -> None:
        """Take in the jobs that came to wait since the last time, and those whose back-off has ended."""
        self.now = now
        self.leaving.clear()
        self._cores.clear()
        state, pending = self.state, self.state.pending
        moved = None if self._seen < 0 else state.moved.since(self._seen)
        self._seen = state.moved.end
        came = list(pending) if moved is None else [row for row in moved if row in pending]
        self.held.difference_update(came)
        self.arrived += came
        rows = [*came, *self._ready(now)]
        if moved is not None and state.bursts:
            bursts = [(core, burst) for core in moved for burst in self._bursts(core)]
            rows += [burst for core, burst in bursts if core in state.running]
            self.arrived += [burst for core, burst in bursts if core not in state.live]  # they can never run
        other_lanes = self._by_user != state.holdings.limits_users
        self.arrived = sorted(row for row in set(self.arrived) if row in pending)
        if moved is None or self.order.moving or other_lanes or not self._sorted.isdisjoint(came):
            self._by_user = state.holdings.limits_users
            self.lanes.clear()
            self._sorted.clear()
            rows = list(pending)
        self._push([row for row in rows if self._may_be_tried(row, now)])

    def _ready(self, now: int) -> list[int]:
        rows = []
        while self._later and self._later[0][0] <= now:
            until, row = heappop(self._later)
            if self._backs_off(until, row):
                del self._until[row]
                rows.append(row)
        return rows

    def _bursts(self, core: int) -> list[int]:
        return [row for row in self.state.bursts.get(core, ()) if row in self.state.pending]

    def _may_be_tried(self, row: int, now: int) -> bool:
        jobs = self.state.jobs
        if jobs[row, J_RETURNS]:
            back_off = self.requeue.back_off(self.state, row)
            if back_off is not None and back_off.until > now:
                if self._until.get(row) != back_off.until:
                    self._until[row] = back_off.until
                    heappush(self._later, (back_off.until, row))
                return False
        return self._core_runs(row)

    def _core_runs(self, row: int) -> bool:
        """Whether the core of a burst runs as the plan stands; of other jobs True."""
        core = int(self.state.jobs[row, J_CORE]) if self.state.bursts else -1
        return core < 0 or self._cores.get(core, core in self.state.running)

    def next_ready(self) -> int:
        """When the next back-off ends; -1 where none is waited for."""
        while self._later and not self._backs_off(*self._later[0]):
            heappop(self._later)
        return self._later[0][0] if self._later else -1

    def _backs_off(self, until: int, row: int) -> bool:
        """Whether this is how long a job still waits."""
        if row not in self.state.pending:
            self._until.pop(row, None)
        return self._until.get(row) == until

    def _push(self, rows: list[int]) -> None:
        rows = [row for row in dict.fromkeys(rows) if row not in self._sorted]
        if self.lane_of is None or not rows:
            return
        self._sorted.update(rows)
        jobs = self.state.jobs
        keys = self.order.keys(jobs, np.array(rows, dtype=np.int64), self.state.now).tolist()
        by_priority = self.order.by_priority
        for row, key in zip(rows, keys, strict=True):
            lane_key = self._lane_key(row)
            lane = self.lanes.get(lane_key)
            if lane is None:
                lane = self.lanes[lane_key] = []
            heappush(lane, (-int(jobs[row, J_PRIORITY]) if by_priority else 0, key, row, int(jobs[row, J_SHAPE])))
            self._touched.add(lane_key)

    def _lane_key(self, row: int) -> LaneKey:
        """The lane of a job; where users are limited, what holds for one of them does not hold for another."""
        assert self.lane_of is not None
        queue, shape, user = self.state.jobs[row, [J_QUEUE, J_SHAPE, J_USER]].tolist()
        key = self.lane_of(queue, shape)
        if self.order.shares and key[:1] != (queue,):
            key = (queue, *key)
        return (*key, user) if len(key) > 1 and self._by_user else key

    def ranked(self, turn: Turn) -> list[int]:
        """All waiting jobs that may be tried now, best first, for disciplines that keep no lanes."""
        rows = [row for row in self.state.pending if row not in self.leaving and self._may_be_tried(row, self.now)]
        table = np.sort(np.array(rows, dtype=np.int64))  # on ties in order of arrival
        return table[turn.ranking(table)].tolist() if rows else []

    # --- one cycle's walk ------------------------------------------------------------------------------------

    def leave(self, row: int) -> None:
        """The plan rejects this job: nobody tries it any more."""
        self.leaving.add(row)

    def core_starts(self, core: int) -> None:
        """The plan starts a core: its bursts may be tried in the same cycle."""
        if core in self.state.bursts:
            self._cores[core] = True
            self._push([row for row in self._bursts(core) if self._may_be_tried(row, self.now)])

    def core_stops(self, core: int) -> None:
        """The plan stops a core: its bursts may not be tried any more."""
        if core in self.state.bursts:
            self._cores[core] = False

    def walk(self, share: Share | None = None) -> Iterator[tuple[int, Shape, LaneKey]]:
        """Each head that may be tried now, best first over all lanes; queues with the least share first.

        The caller calls `took` or `block` before it asks for the next one. Every lane ends up empty or blocked, so
        unless something has opened since the last walk only lanes with new jobs need a look.
        """
        keys: Iterable[LaneKey] = self._touched
        state = self.state
        changes = int(state.log[0]) if self._any_change_counts else -1
        mark = (state.openings, changes, state.holdings.refunds, self._moves())
        if self._mark != mark or 0 <= self.retry_at <= self.now:
            self._mark = mark
            keys = list(self.lanes)
        done = False
        try:
            while keys:
                self._touched = set()
                yield from self._walk(keys, share)
                keys = self._touched  # of bursts whose core has just been started
            done = True
        finally:
            if self.retry_at >= 0:
                self.retry_at = self._next_retry()
            if not done:  # the caller left early: some lanes have not been looked at
                self._mark = (-1, -1, -1, -1)

    def _walk(self, keys: Iterable[LaneKey], share: Share | None) -> Iterator[tuple[int, Shape, LaneKey]]:
        def had_by(key: LaneKey) -> tuple[float, ...]:
            return share(key[0]) if share is not None else ()

        ready: list[tuple[tuple[float, ...], Entry, LaneKey]] = []
        for key in keys:
            lane = self.lanes[key]
            if self._is_open(key, lane):
                ready.append((had_by(key), lane[0], key))
            elif not lane:
                del self.lanes[key]
        heapify(ready)
        shapes, lanes = self.state.shapes.shapes, self.lanes
        while ready:
            had, head, key = ready[0]
            lane = lanes[key]
            if lane and lane[0] is head and not self._blocks(key, head):
                has = had_by(key)
                if has > had:  # its queue has got something since: others may be before it now
                    heapreplace(ready, (has, head, key))
                    continue
                yield head[2], shapes[head[3]], key
            if self._is_open(key, lane):
                heapreplace(ready, (had_by(key), lane[0], key))
            else:
                heappop(ready)

    def took(self, key: LaneKey) -> None:
        """The head starts, or leaves. A driver that refuses the start brings it back by an event."""
        self._sorted.discard(heappop(self.lanes[key])[2])

    def block(self, key: LaneKey, shape: Shape, until: int = -1) -> None:
        """This head cannot start, and will not before something opens (or before `until`)."""
        kind, whom = self._kind(key, self.lanes[key][0][2], shape.index)
        self._blocked[kind] = (self._stamp(shape), until, whom)
        if len(shape.parts) > 1:
            self._any_change_counts = True
        if until >= 0:
            self.retry_at = until if self.retry_at < 0 else min(self.retry_at, until)

    def _next_retry(self) -> int:
        """When the first verdict on a head ends by itself; -1 where none does."""
        heads = [(key, lane[0]) for key, lane in self.lanes.items() if lane and self._blocks(key, lane[0])]
        ends = [self._blocked[self._kind(key, head[2], head[3])[0]][1] for key, head in heads]
        return min((end for end in ends if end >= 0), default=-1)

    def heads(self) -> list[tuple[Entry, LaneKey]]:
        """The first of every lane, best first."""
        found = []
        for key, lane in self.lanes.items():
            self._clean(lane)
            if lane:
                found.append((lane[0], key))
        return sorted(found)

    def head_before(self, row: int) -> int | None:
        """The job that blocks this one: the head of its lane, unless it is the head itself."""
        if self.lane_of is None:
            return None
        lane = self.lanes.get(self._lane_key(row), [])
        self._clean(lane)
        return lane[0][2] if lane and lane[0][2] != row else None

    def _clean(self, lane: list[Entry]) -> None:
        pending, leaving = self.state.pending, self.leaving
        while lane and (lane[0][2] not in pending or lane[0][2] in leaving or not self._core_runs(lane[0][2])):
            self._sorted.discard(heappop(lane)[2])

    def _is_open(self, key: LaneKey, lane: list[Entry]) -> bool:
        """Whether the lane has a head, and nothing is known against it."""
        self._clean(lane)
        return bool(lane) and not self._blocks(key, lane[0])

    def _blocks(self, key: LaneKey, head: Entry) -> bool:
        """Whether the head is known not to start."""
        kind, whom = self._kind(key, head[2], head[3])
        verdict = self._blocked.get(kind)
        if verdict is None or verdict[2] != whom:
            return False
        return verdict[0] == self._stamp(self.state.shapes.shapes[head[3]]) and not 0 <= verdict[1] <= self.now

    def _kind(self, key: LaneKey, row: int, shape: int) -> tuple[Kind, int]:
        """For which jobs a verdict on this one holds, and the job if it is the only one of them."""
        if self.state.holdings.tree is not None:
            return key, row
        if not self.preempts:
            return shape, -1
        core = int(self.state.jobs[row, J_CORE]) if self.state.bursts else -1
        return (shape, int(self.state.jobs[row, J_PRIORITY]), core), -1

    def _moves(self) -> int:
        """How many jobs have moved, where that alone may give a waiting job the right to stop another."""
        return self.state.moved.end if self.preempts and self.state.holdings.tree is not None else 0

    def _stamp(self, shape: Shape) -> int:
        """What must not change for a verdict on the shape to hold: capacity that came free in its pools.

        A gang of several groups may even come to fit when something is taken, because its groups are placed one
        after the other; for such a shape the verdict holds until any node changes. What a quota kept back may come
        with anything that is given back anywhere.
        """
        state = self.state
        others = state.holdings.refunds + self._moves() if state.holdings.tree is not None else 0
        if len(shape.parts) > 1:
            return int(state.log[0]) + others
        if len(shape.pools) == 1:
            return state.freed[shape.pools[0]] + others
        return sum(state.freed[pool] for pool in shape.pools) + others
