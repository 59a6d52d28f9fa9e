"""The waiting jobs in lanes. The head of a lane stands for all behind it: if it does not fit, none is tried.

Strict FIFO has one lane for each queue. Best-effort FIFO has one for each shape in each queue, because what does
not fit for one job does not fit for another that asks for the very same: so a cycle tries each shape once and never
walks the whole queue. What is found out about a head is kept (`verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster.columns import J_CORE, J_PRIORITY, J_QUEUE, J_RETURNS, J_SHAPE, J_USER
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.placement import Allocation
from kant.queueing.hopeless import Hopeless
from kant.queueing.order import Order
from kant.queueing.requeue import Requeue
from kant.queueing.verdicts import LaneKey, Verdicts

if TYPE_CHECKING:
    from kant.queueing.turn import Turn

Entry = tuple[int, Any, int, int]
"""(-priority, key of the order, row, shape): rows are in order of arrival, so they are the tie-break."""

Share = Callable[[int], tuple[float, ...]]
"""What a queue has had of its share, so far in this cycle."""


class Waiting:
    """The waiting jobs of a `ClusterState`, following what moves there.

    `lane_of` says from queue and shape in which lane a job stands (None: nothing is sorted); `preempts`, whether
    waiting jobs may stop running ones; `draws`, whether the placement depends on the job by chance.
    """

    def __init__(
        self,
        state: ClusterState,
        order: Order,
        requeue: Requeue,
        lane_of: Callable[[int, int], LaneKey] | None,
        preempts: bool = False,
        draws: bool = False,
    ) -> None:
        self.state = state
        self.order = order
        self.requeue = requeue
        self.lane_of = lane_of
        self.verdicts = Verdicts(state, preempts, draws)
        self.lanes: dict[LaneKey, list[Entry]] = {}
        self.arrived: list[int] = []  # not yet seen by a cycle
        self.leaving: set[int] = set()  # rejected in this cycle, not yet gone from the state
        self._sorted: set[int] = set()  # who stands in a lane
        self._cores: dict[int, bool] = {}  # whether a core runs as the plan leaves it, if it starts or stops it
        self.held: set[int] = set()  # waiting jobs whose hold has been said
        self._later: list[tuple[int, int]] = []  # heap of (when it may be tried again, row)
        self._until: dict[int, int] = {}  # of each row in it, as last said
        self._touched: set[LaneKey] = set()  # lanes that got a job since the last walk
        self.hopeless = Hopeless(state)
        self.now = state.now
        self._seen = -1
        self._mark = (-1, -1, -1)  # what had opened, in the state and in plans, at the end of the last walk
        self._opens = False  # the plan has opened something since the walk under way began
        self._released: list[int] = []  # bursts whose core the plan has started
        self._tenancy = state.holdings.tenancy
        self._by_user = False  # lanes are of one user each
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
        if state.bursts:
            self.verdicts.bursts += 1 if moved is None else int((state.jobs[moved, J_CORE] >= 0).sum()) if moved else 0
        if self._tenancy is not state.holdings.tenancy:  # who can never start may be somebody else now
            self._tenancy, moved = state.holdings.tenancy, None
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
            self._touched.clear()
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

    def starts(self, row: int) -> None:
        """The plan starts a job; its bursts may be tried in the same cycle."""
        self.verdicts.started(row)
        if row in self.state.bursts:
            self._cores[row] = True
            self._released += self._bursts(row)
            self._opens = True

    def stops(self, row: int) -> None:
        """The plan stops a running job; its bursts may not be tried any more, others may fit where it was."""
        self.verdicts.stopped(row, self.state.running[row])
        self._opens = True
        if row in self.state.bursts:
            self._cores[row] = False

    def shrinks(self, row: int, pieces: Allocation) -> None:
        """The plan takes these pieces from a running gang; others may fit there."""
        self.verdicts.stopped(row, pieces)
        self._opens = True

    def walk(self, share: Share | None = None) -> Iterator[tuple[int, Shape, LaneKey]]:
        """Each head that may be tried now, best first over all lanes; queues with the least share first.

        The caller calls `took` or `block` before it asks for the next one. Every lane ends up empty or blocked, so
        unless something has opened since the last walk only lanes with new jobs need a look. If the plan opens
        something on the way, all lanes are walked again: so what is known from earlier cycles changes nothing.
        """
        state, verdicts = self.state, self.verdicts
        new = verdicts.begin()
        mark = (state.openings, state.holdings.refunds, verdicts.freed)
        everywhere = new or verdicts.may_be_fickle or mark != self._mark or self.retry_at >= 0
        self._mark = (-1, -1, -1)  # should the caller leave early: some lanes have not been looked at
        keys: Iterable[LaneKey] = self.lanes if everywhere else self._touched
        self._opens = True
        while self._opens:  # lists change only between two rounds, so `took` finds its head first in its lane
            self._opens = False
            self._push([row for row in self._released if self._may_be_tried(row, self.now)])
            self._released.clear()
            self._touched = set()
            yield from self._walk(list(keys), share)
            keys = self.lanes
        self._mark = (state.openings, state.holdings.refunds, verdicts.freed)
        if self.retry_at >= 0:
            self.retry_at = self._next_retry()

    def _walk(self, keys: Iterable[LaneKey], share: Share | None) -> Iterator[tuple[int, Shape, LaneKey]]:
        def had_by(key: LaneKey) -> tuple[float, ...]:
            return share(key[0]) if share is not None else ()

        lanes = self.lanes
        ready: list[tuple[tuple[float, ...], Entry, LaneKey]] = []
        for key in keys:
            lane = lanes[key]
            self._clean(lane)
            if not lane:
                del lanes[key]
            elif not self._blocks(key, lane[0], for_sure=True):
                ready.append((had_by(key), lane[0], key))
        heapify(ready)
        while ready and not self._opens:
            had, head, key = ready[0]
            lane = lanes[key]
            if lane and lane[0] is head and not self._blocks(key, head):
                has = had_by(key)
                if has > had:  # its queue has got something since: others may be before it now
                    heapreplace(ready, (has, head, key))
                    continue
                yield head[2], self._shape(head), key
            self._clean(lane)
            if lane and not self._blocks(key, lane[0]):
                heapreplace(ready, (had_by(key), lane[0], key))
            else:
                heappop(ready)

    def took(self, key: LaneKey) -> None:
        """The head starts, or leaves. A driver that refuses the start brings it back by an event."""
        self._sorted.discard(heappop(self.lanes[key])[2])

    def block(self, key: LaneKey, shape: Shape, until: int = -1, lasts: bool = True) -> None:
        """This head cannot start, and will not before something opens, or before `until` if that is not -1.

        Unless it `lasts`, that is said of this cycle only.
        """
        self.verdicts.block(key, self.lanes[key][0][2], shape, until, lasts)
        if until >= 0:
            self.retry_at = until if self.retry_at < 0 else min(self.retry_at, until)

    def _next_retry(self) -> int:
        """When the first head may be tried again although nothing opens; -1 where none may."""
        heads = [(key, lane[0]) for key, lane in self.lanes.items() if lane]
        found = [self.verdicts.of(key, head[2], self._shape(head)) for key, head in heads]
        return min((one.until for one in found if one is not None and one.until > self.now), default=-1)

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

    def _blocks(self, key: LaneKey, head: Entry, for_sure: bool = False) -> bool:
        """Whether the head is known not to start; `for_sure`, not even once this plan has started others."""
        shape = self._shape(head)
        found = self.verdicts.of(key, head[2], shape)
        if found is None or not self.verdicts.holds(found, shape, self.now):
            return False
        return not for_sure or not self.verdicts.fickle(found, shape)

    def _shape(self, head: Entry) -> Shape:
        return self.state.shapes.shapes[head[3]]
