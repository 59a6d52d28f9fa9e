"""Backfill: Kant's own kind, which needs no estimate of any run time."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.cluster.columns import J_QUEUE, J_SINCE
from kant.cluster.shapes import Shape
from kant.model.taxonomy import Tags, tagged
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.ports import NotNow
from kant.queueing.preemption.backfilled import preempt_backfilled


class Backfill(Discipline, frozen=True, tag="backfill"):
    """Jobs behind a blocked head start; when the head has waited for `timeout_s`, jobs that overtook it are stopped to
    seat it. The head is the first in order of those that compete for the same pools and that their quota lets start;
    where it has no right to enough of them, the first of another queue has its turn.
    """

    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "Backfill of Kant, arXiv 2510.01256"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="none", preemption="evict")

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue, shape)

    def run(self, cycle: CyclePlan) -> None:
        super().run(cycle)
        state, late_heads, served = cycle.state, cycle.pending.late_heads, set[int]()
        without = set[tuple[int, int]]()  # queues whose head has no right to enough, and for which pools
        if not state.pending:
            return
        for (_, _, row, shape_index, _), bucket in cycle.pending.heads(of_pools=not cycle.limited):
            shape = state.shapes.shapes[shape_index]
            if shape.pool_bits in served:
                continue
            queue, known = state.jobs.item(row, J_QUEUE), bucket.asleep
            if (queue, shape.pool_bits) in without or (known is not None and known.by_quota):
                continue
            if cycle.limited and _waits_for_quota(cycle, row, shape):
                continue
            served.add(shape.pool_bits)
            until = state.jobs.item(row, J_SINCE) + self.timeout_s * SECOND
            if until > cycle.now:
                cycle.wake_at(until)
                continue
            if not state.books:
                allocation = preempt_backfilled(cycle, row, shape)
            else:
                with cycle.beside_bookings(row):
                    allocation = preempt_backfilled(cycle, row, shape)
            if not isinstance(allocation, NotNow):
                cycle.start(row, allocation)
                cycle.pending.took(bucket)
            elif state.quota_usage.tree is not None and not late_heads.is_unreclaimable(row, shape, cycle.now):
                # Enough overtook it, but it has no right to them; the head of another queue may have.
                served.discard(shape.pool_bits)
                without.add((queue, shape.pool_bits))


def _waits_for_quota(cycle: CyclePlan, row: int, shape: Shape) -> bool:
    """Whether its queue or its quota keeps a job, and no running job does."""
    admission = cycle.admission
    if admission.closed(row) is not None:
        return True
    return all(admission.shortage(row, option) for option in admission.options(row, shape))
