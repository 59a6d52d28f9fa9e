"""Growth: capacity that no waiting job can use goes to elastic gangs, up to their ceilings.

The gangs that the plan starts come first; they start with their floors. Then come the running gangs, in the order in
which they started. Each gets as many pods as fit within its quota and clear of all reservations.

Sources: the idea of a floor and a ceiling is Pollux' and Torch Elastic's (`--nnodes=MIN:MAX`); to grow jobs only after
all waiting jobs, so that none of them is kept from starting, is from Elastic in Volcano and KAI-Scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_QUEUE, J_USER, P_FREED, POOL
from kant.cluster.elastic import pods_by_group
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Start
from kant.model.placement import NODE, Allocation
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.resizing import end_with, gives_back_after, grow, widen

Counts = tuple[int, ...]


class Elastic(Struct, frozen=True, forbid_unknown_fields=True):
    """The time after which a running elastic gang may grow.

    `grow_s`: a running gang grows once it has had its size for this many seconds, if no waiting job can use the free
    capacity; or at once, if its owner has scaled it up (`JobScaled`). -1: running gangs never grow.
    """

    grow_s: Annotated[int, Meta(ge=-1, le=10**9)] = 600


class Growth:
    """Grows the elastic gangs of one state. Remembers which of them found no capacity, only to save time."""

    def __init__(self, state: ClusterState, rule: Elastic) -> None:
        self.state = state
        self.rule = rule
        self._failed: dict[int, tuple[int, int, int]] = {}  # running gang -> its size, shape and stamp
        self.over_quota: set[int] = set()  # failed gangs that lack quota; the others lack capacity

    def run(self, cycle: CyclePlan) -> None:
        """Give the capacity that is left at the end of a cycle to elastic gangs."""
        if not self.state.elastic:
            return
        if len(self._failed) > 2 * len(self.state.elastic):
            self._failed.clear()
        starts = [decision for decision in cycle.plan.decisions if isinstance(decision, Start)]
        for start in starts:
            if self.state.rows[start.job] in self.state.elastic:
                self._widen(cycle, start)
        if self.rule.grow_s >= 0:
            for row in self._may_grow(cycle):
                self._grow(cycle, row)

    # --- starting gangs ------------------------------------------------------------------------------------------

    def _widen(self, cycle: CyclePlan, start: Start) -> None:
        """Place the whole gang again with as many pods as fit; if no more fit, it keeps the placement of its floor."""
        row, trial, shapes = self.state.rows[start.job], cycle.placer.trial, self.state.shapes
        if row in self.state.burst_replicas and gives_back_after(cycle, start):
            return  # the larger gang would have to start after the later stops, but before its burst replicas
        option = self._option(cycle, row, start.allocation)
        assert option is not None, "it has just been placed there"
        floor = tuple(group.count for group in option.groups)

        def place(more: Counts) -> Allocation | NoFit:
            counts = tuple(a + b for a, b in zip(floor, more, strict=True))
            until = end_with(cycle, row, sum(counts)) if cycle.forecast is not None else 0
            return cycle.place_beside(row, shapes.sized(option, counts), until)

        most = self._allowed(cycle, row, option, floor)
        if most:
            trial.evict(start.allocation)
            found = self._largest(cycle, option, floor, most, place)
            if found is None:
                trial.restore(start.allocation)
            else:
                widen(cycle, start, found)

    # --- running gangs --------------------------------------------------------------------------------------------

    def _may_grow(self, cycle: CyclePlan) -> Iterator[int]:
        """Yield the gangs below their ceiling that may grow now; ask for a cycle when the next one may."""
        state = self.state
        for row in [row for row in state.running if row in state.elastic]:
            progress = state.elastic[row]
            if progress.pods >= progress.ceiling or row in cycle.stopped or row in cycle.shrunk:
                continue
            ripe = cycle.now if progress.ripe else progress.resized + self.rule.grow_s * SECOND
            if cycle.growth_held_until is not None and ripe <= cycle.now:
                ripe = cycle.growth_held_until(row, state.shape_of(row))
            if ripe > cycle.now:
                cycle.wake_at(ripe)
            elif (
                cycle.forecast is not None
                or cycle.stopped  # the gang may use what the plan frees
                or cycle.shrunk
                or state.books  # time alone ends a booking
                or self._failed.get(row) != (progress.pods, progress.shape.index, self._stamp(row))
            ):
                yield row

    def _stamp(self, row: int) -> int:
        """Return a stamp that changes when capacity is freed or quotas change: until then no retry helps."""
        state = self.state
        shape = state.shape_of(row)
        room = int(state.log[0]) if shape.order_dependent else int(state.pools[list(shape.pools), P_FREED].sum())
        return room + state.quota_usage.quota_version

    def _grow(self, cycle: CyclePlan, row: int) -> None:
        held, shapes = self.state.running[row], self.state.shapes
        if cycle.admission.closed(row) is not None:
            return
        option = self._option(cycle, row, held)
        if option is None:
            return
        counts = pods_by_group(self.state.shape_of(row), held)
        assert counts is not None

        def place(more: Counts) -> Allocation | NoFit:
            until = end_with(cycle, row, sum(counts) + sum(more)) if cycle.forecast is not None else 0
            return cycle.place_beside(row, shapes.sized(option, more), until, held)

        most = self._allowed(cycle, row, option, counts)
        found = self._largest(cycle, option, counts, most, place) if most else None
        if found is not None:
            grow(cycle, row, found)
        else:
            self._failed[row] = (sum(counts), self.state.elastic[row].shape.index, self._stamp(row))
            (self.over_quota.discard if most else self.over_quota.add)(row)

    # --- how many pods --------------------------------------------------------------------------------------------

    def _option(self, cycle: CyclePlan, row: int, held: Allocation) -> Shape | None:
        """Return the option whose pools hold the gang, so that it stays on its GPU model if quotas distinguish models.
        None if no option has its pool any more."""
        pool = int(self.state.table[held[0, NODE], POOL])
        options = cycle.admission.options(row, self.state.shape_of(row))
        return next((option for option in options if option.pool_bits >> pool & 1), None)

    def _more(self, option: Shape, counts: Counts, pods: int) -> Counts:
        """Distribute `pods` more pods: group by group, each up to its ceiling."""
        more = []
        for count, ceiling in zip(counts, option.ceiling, strict=True):
            more.append(min(ceiling - count, pods))
            pods -= more[-1]
        return tuple(more)

    def _allowed(self, cycle: CyclePlan, row: int, option: Shape, counts: Counts) -> int:
        """Return how many more pods the ceiling and the quota of the gang allow."""
        most, quota_usage = sum(option.ceiling) - sum(counts), self.state.quota_usage
        queue, user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
        if most == 0 or quota_usage.tree is None or quota_usage.node_of[queue] < 0:
            return most
        low, high = 0, most + 1
        while low + 1 < high:
            pods = most if high > most else (low + high) // 2
            asked = quota_usage.amounts(self.state.shapes.sized(option, self._more(option, counts, pods)))
            if cycle.admission.quota_tree.shortage(quota_usage.node_of[queue], user, asked) is None:
                low = pods
            else:
                high = pods
        return low

    def _largest(
        self, cycle: CyclePlan, option: Shape, counts: Counts, most: int, place: Callable[[Counts], Allocation | NoFit]
    ) -> Allocation | None:
        """Place as many more pods as fit, on the trial; None if no pod fits.

        Bisects between a count that fits and one that does not. For a gang of one group, NoFit has the number that fit.
        """
        trial, low, high, pods = cycle.placer.trial, 0, most + 1, most
        while low + 1 < high:
            mark = trial.checkpoint()
            found = place(self._more(option, counts, pods))
            if isinstance(found, NoFit):
                high = pods
                pods -= found.pods - found.fits if len(option.parts) == 1 else 0
                pods = pods if low < pods < high else (low + high) // 2
            elif pods + 1 == high:
                return found
            else:
                trial.rollback(mark)
                low, pods = pods, (pods + high) // 2
        if low == 0:
            return None
        again = place(self._more(option, counts, low))
        assert isinstance(again, np.ndarray), "the same nodes gave another answer"
        return again
