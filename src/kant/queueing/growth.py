"""Growth: what nobody who waits can use goes to elastic gangs, up to their ceilings.

First to those that the plan starts, which have their floors so far; then to those that run, in the order in which they
started. Each gets as many pods as fit, its quota lets it have, and stay clear of what is promised.

Sources: the idea of a floor and a ceiling is Pollux' and Torch Elastic's (`--nnodes=MIN:MAX`); that growth comes after
everybody who waits, so that it keeps nobody from starting, is that of Elastic in Volcano and of KAI-Scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_QUEUE, J_USER, POOL
from kant.cluster.elastic import pods_by_group
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Start
from kant.model.placement import NODE, Allocation
from kant.model.units import SECOND
from kant.queueing.resizing import end_with, gives_back_after, grow, widen
from kant.queueing.turn import Turn

Counts = tuple[int, ...]


class Elastic(Struct, frozen=True, forbid_unknown_fields=True):
    """How elastic gangs change their size while they run.

    `grow_s`: a gang that runs grows when it has had its size for so many seconds, where nobody who waits can use what
    is free. -1: it does not grow.
    """

    grow_s: Annotated[int, Meta(ge=-1, le=10**9)] = 600


class Growth:
    """The growth of one state's gangs. It remembers for whom there was no room: losing that costs time only."""

    def __init__(self, state: ClusterState, rule: Elastic) -> None:
        self.state = state
        self.rule = rule
        self._failed: dict[int, tuple[int, int]] = {}  # running gang -> its size, and what must not change

    def run(self, turn: Turn) -> None:
        """Hand out what is left at the end of a cycle."""
        if not self.state.elastic:
            return
        if len(self._failed) > 2 * len(self.state.elastic):
            self._failed.clear()
        starts = [decision for decision in turn.plan.decisions if isinstance(decision, Start)]
        for start in starts:
            if self.state.rows[start.job] in self.state.elastic:
                self._widen(turn, start)
        if self.rule.grow_s >= 0:
            for row in self._may_grow(turn):
                self._grow(turn, row)

    # --- who starts ------------------------------------------------------------------------------------------

    def _widen(self, turn: Turn, start: Start) -> None:
        """The whole gang is placed anew, with as many pods as can be; else it stays where its floor is."""
        row, trial, shapes = self.state.rows[start.job], turn.placer.trial, self.state.shapes
        if row in self.state.bursts and gives_back_after(turn, start):
            return  # it would have to start after them, but not after its bursts
        option = self._option(turn, row, start.allocation)
        floor = tuple(group.count for group in option.groups)

        def place(more: Counts) -> Allocation | NoFit:
            counts = tuple(a + b for a, b in zip(floor, more, strict=True))
            until = end_with(turn, row, sum(counts)) if turn.forecast is not None else 0
            return turn.place_beside(row, shapes.sized(option, counts), until)

        most = self._allowed(turn, row, option, floor)
        if most:
            trial.evict(start.allocation)
            found = self._largest(turn, option, floor, most, place)
            if found is None:
                trial.restore(start.allocation)
            else:
                widen(turn, start, found)

    # --- who runs --------------------------------------------------------------------------------------------

    def _may_grow(self, turn: Turn) -> Iterator[int]:
        """Gangs below their ceiling whose time has come; asks for a cycle when that of another one does."""
        state = self.state
        for row in [row for row in state.running if row in state.elastic]:
            progress = state.elastic[row]
            if progress.pods >= progress.ceiling or row in turn.stopped or row in turn.shrunk:
                continue
            ripe = progress.resized + self.rule.grow_s * SECOND
            if ripe > turn.now:
                turn.review(ripe)
            elif turn.forecast is not None or self._failed.get(row) != (progress.pods, self._stamp(turn, row)):
                yield row

    def _stamp(self, turn: Turn, row: int) -> int:
        """What must not change for a verdict "no room" to hold: capacity came free, or what quotas say."""
        verdicts, holdings = turn.waiting.verdicts, self.state.holdings
        return verdicts.room(self.state.shape_of(row)) + holdings.refunds + verdicts.freed * (holdings.tree is not None)

    def _grow(self, turn: Turn, row: int) -> None:
        held, shapes = self.state.running[row], self.state.shapes
        if turn.admission.closed(row) is not None:
            return
        option = self._option(turn, row, held)
        counts = pods_by_group(self.state.shape_of(row), held)
        assert counts is not None

        def place(more: Counts) -> Allocation | NoFit:
            until = end_with(turn, row, sum(counts) + sum(more)) if turn.forecast is not None else 0
            return turn.place_beside(row, shapes.sized(option, more), until, held)

        most = self._allowed(turn, row, option, counts)
        found = self._largest(turn, option, counts, most, place) if most else None
        if found is not None:
            grow(turn, row, found)
        else:
            self._failed[row] = (sum(counts), self._stamp(turn, row))

    # --- how many --------------------------------------------------------------------------------------------

    def _option(self, turn: Turn, row: int, held: Allocation) -> Shape:
        """The shape on whose pools a gang is: where quotas tell GPU models apart it stays on its own."""
        pool = int(self.state.table[held[0, NODE], POOL])
        options = turn.admission.options(row, self.state.shape_of(row))
        return next(option for option in options if option.pool_bits >> pool & 1)

    def _more(self, option: Shape, counts: Counts, pods: int) -> Counts:
        """How `pods` more are shared out: group by group, each up to its ceiling."""
        more = []
        for count, ceiling in zip(counts, option.ceiling, strict=True):
            more.append(min(ceiling - count, pods))
            pods -= more[-1]
        return tuple(more)

    def _allowed(self, turn: Turn, row: int, option: Shape, counts: Counts) -> int:
        """How many more pods its ceiling and its quota let it have."""
        most, holdings = sum(option.ceiling) - sum(counts), self.state.holdings
        queue, user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
        if most == 0 or holdings.tree is None or holdings.node_of[queue] < 0:
            return most
        low, high = 0, most + 1
        while low + 1 < high:
            pods = most if high > most else (low + high) // 2
            asked = holdings.amounts(self.state.shapes.sized(option, self._more(option, counts, pods)))
            if turn.admission.books.shortage(holdings.node_of[queue], user, asked) is None:
                low = pods
            else:
                high = pods
        return low

    def _largest(
        self, turn: Turn, option: Shape, counts: Counts, most: int, place: Callable[[Counts], Allocation | NoFit]
    ) -> Allocation | None:
        """The placement of as many more pods as fit, taken on the trial; None where not one does.

        By halving between what fits and what does not; a verdict on a gang of one group says at once how many do.
        """
        trial, low, high, pods = turn.placer.trial, 0, most + 1, most
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
