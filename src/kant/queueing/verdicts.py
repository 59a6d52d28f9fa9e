"""Verdicts: which heads of lanes are known not to start, and until what happens that stays true."""

from __future__ import annotations

from typing import NamedTuple

from kant.cluster.columns import J_CORE, J_PRIORITY, POOL
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.placement import NODE, Allocation

LaneKey = tuple[int, ...]
"""The queue first, where the order is one of queues."""

Kind = int | tuple[int, ...]
"""Jobs that may do the same: those of a shape; of a shape, priority and core; or those of a lane."""


class Verdict(NamedTuple):
    """One head cannot start, and so nobody of its kind."""

    stamp: int  # what had opened when it was found
    until: int  # when it ends by itself; -1: it does not
    whom: int  # on which row alone; -1: on all of its kind
    cycle: int  # of which cycle alone; -1: of any


class Verdicts:
    """What has been found out about heads. Only a cache: to forget it all costs time and changes nothing.

    A verdict holds for all jobs of a shape until capacity comes free in its pools, in the state or in the plan under
    way. With `preempts` it holds for those of one priority, since they differ in whom they may stop. Some are *fickle*:
    a start may end them too. A fickle shape may come to fit when something is taken (`Shape.fickle`). Where there are
    quotas, who starts may change what a queue is entitled to take back; where there are bursts, they keep their core
    from being stopped. And who waits for others to come of age waits in vain once somebody else has taken the place.
    Where the placement `draws` by the job, gangs of several groups that ask for the same may fare differently.
    """

    def __init__(self, state: ClusterState, preempts: bool, draws: bool) -> None:
        self.state = state
        self.preempts = preempts
        self.draws = draws
        self.freed = (
            0  # times that plans have stopped or shrunk a job; what they free counts before they are carried out
        )
        self.bursts = 0  # bursts that have moved, or that a plan has started or stopped
        self._freed = [0] * len(state.freed)  # as `freed`, by pool
        self._written = 0  # starts, stops and shrinks of plans
        self._cycle = 0
        self._found: dict[Kind, Verdict] = {}
        self._groups = False  # whether one of them is on a gang of several groups
        self._brief = False  # whether one of them is of this cycle alone

    def begin(self) -> bool:
        """A new cycle begins. Whether a verdict has ended with the last one."""
        ended, self._brief = self._brief, False
        self._cycle += 1
        return ended

    def started(self, row: int) -> None:
        """The plan starts a job."""
        self._written += 1
        self.bursts += int(self.state.jobs[row, J_CORE] >= 0)

    def stopped(self, row: int, pieces: Allocation) -> None:
        """The plan stops a running job, or shrinks it: these pieces come free."""
        self.started(row)
        self.freed += 1
        for pool in set(self.state.table[pieces[:, NODE], POOL].tolist()):
            self._freed[pool] += 1

    # --- verdicts --------------------------------------------------------------------------------------------

    def block(self, key: LaneKey, row: int, shape: Shape, until: int, lasts: bool) -> None:
        """The head of a lane cannot start, and will not before something opens, or before `until` if that is not -1.

        Unless it `lasts`, that is said of this cycle only.
        """
        kind, whom = self._kind(key, row, shape)
        self._found[kind] = Verdict(self._stamp(shape, until >= 0), until, whom, -1 if lasts else self._cycle)
        self._groups |= shape.fickle
        self._brief |= not lasts

    def of(self, key: LaneKey, row: int, shape: Shape) -> Verdict | None:
        """What was last found out about a head, whether that still holds or not."""
        kind, whom = self._kind(key, row, shape)
        found = self._found.get(kind)
        return found if found is not None and found.whom == whom else None

    def holds(self, found: Verdict, shape: Shape, now: int) -> bool:
        """Whether a head is still known not to start."""
        if found.cycle not in (-1, self._cycle) or 0 <= found.until <= now:
            return False
        return found.stamp == self._stamp(shape, found.until >= 0)

    def fickle(self, found: Verdict, shape: Shape) -> bool:
        """Whether a start may end the verdict."""
        return shape.fickle or found.until >= 0 or self._rights_change

    @property
    def may_be_fickle(self) -> bool:
        """Whether there is one of those, but for such as wait for somebody to come of age."""
        return self._groups or self._rights_change

    @property
    def _rights_change(self) -> bool:
        return self.preempts and (self.state.holdings.tree is not None or bool(self.state.bursts))

    def _kind(self, key: LaneKey, row: int, shape: Shape) -> tuple[Kind, int]:
        """For which jobs a verdict on this one holds, and the job if it is the only one of them."""
        if self.state.holdings.tree is not None or (self.draws and len(shape.parts) > 1):
            return key, row
        if not self.preempts:
            return shape.index, -1
        core = int(self.state.jobs[row, J_CORE]) if self.state.bursts else -1
        return (shape.index, int(self.state.jobs[row, J_PRIORITY]), core), -1

    def _stamp(self, shape: Shape, waits_for_age: bool) -> int:
        """What must not change for a verdict on the shape to hold: a sum of counts, so it never comes back."""
        state = self.state
        stamp = self.bursts if self.preempts else 0
        if state.holdings.tree is not None:
            stamp += state.holdings.refunds + self.freed
        if waits_for_age or (self.preempts and state.holdings.tree is not None):
            stamp += state.moved.end + self._written
        return stamp + self.room(shape)

    def room(self, shape: Shape) -> int:
        """What must not change for a shape that did not fit to be known not to: a count, which plans bring up too."""
        state = self.state
        if shape.fickle:
            return int(state.log[0]) + self._written
        if len(shape.pools) == 1:
            pool = shape.pools[0]
            return state.freed[pool] + self._freed[pool]
        return sum(state.freed[pool] + self._freed[pool] for pool in shape.pools)
