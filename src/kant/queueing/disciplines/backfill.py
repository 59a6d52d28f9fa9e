"""Backfill: Kant's own kind, which needs no estimate of any run time."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.cluster.columns import J_QUEUE, J_SINCE
from kant.model.units import SECOND
from kant.queueing.discipline import Discipline
from kant.queueing.overtaken import stop_overtakers
from kant.queueing.turn import Turn


class Backfill(Discipline, frozen=True, tag="backfill"):
    """Jobs behind a blocked head start; when the head has waited for `timeout_s`, jobs that overtook it are stopped to
    seat it. The head is the first in order of those that compete for the same pools and that their quota lets start;
    where it has no right to enough of them, the first of another queue has its turn.
    """

    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "Backfill of Kant, arXiv 2510.01256"

    def lane(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue, shape)

    def run(self, turn: Turn) -> None:
        super().run(turn)
        state, served = turn.state, set[int]()
        without = set[tuple[int, int]]()  # queues whose head has no right to enough, and for which pools
        if not state.pending:
            return
        for (_, _, row, shape_index), lane in turn.waiting.heads():
            shape, queue = state.shapes.shapes[shape_index], int(state.jobs[row, J_QUEUE])
            if shape.pool_bits in served or (queue, shape.pool_bits) in without:
                continue
            if turn.admission.closed(row) is not None:
                continue
            if all(turn.admission.shortage(row, option) for option in turn.admission.options(row, shape)):
                continue  # its quota keeps it, nobody who runs does
            served.add(shape.pool_bits)
            until = int(state.jobs[row, J_SINCE]) + self.timeout_s * SECOND
            if until > turn.now:
                turn.review(until)
                continue
            allocation = stop_overtakers(turn, row, shape)
            if allocation is not None:
                turn.start(row, allocation)
                turn.waiting.took(lane)
            elif state.holdings.tree is not None and not turn.waiting.hopeless.holds(row):
                # Enough overtook it, but it has no right to them; the head of another queue may have.
                served.discard(shape.pool_bits)
                without.add((queue, shape.pool_bits))
