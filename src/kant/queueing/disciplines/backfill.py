"""Kant's own backfill, which needs no run-time estimates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from kant.cluster.columns import J_QUEUE
from kant.cluster.shapes import Shape
from kant.model.decision import Outranked
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER, GPU, SECOND
from kant.queueing.admission import awaits_node_until
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.ports import NotNow
from kant.queueing.preemption.policy import Preemption
from kant.queueing.tries import Tries, try_in_order

if TYPE_CHECKING:
    from kant.queueing.late_heads import ServeHeads
    from kant.queueing.priority import PriorityHolds

ONLY_PASSERS = Preemption(priority=False, reclaim="off", min_run_s=0)
"""Preempts only jobs that passed the waiting job, by the rules of `CyclePlan.preempts_passing`."""


class Backfill(Discipline, frozen=True, tag="backfill"):
    """Jobs behind a blocked head start; once the head has waited for `timeout_s`, backfilled jobs are preempted for it.
    The head is the first in order of the jobs that compete for the same pools and are within quota. If the head may not
    preempt enough of those jobs, the first job of another queue is tried.

    With `large_gpus`, jobs of at least that many GPUs have a head of their own, and smaller heads wait for
    `small_timeout_s`: a job that fits in small gaps seldom needs preemption.

    With `keeps_priority` a blocked job is not passed by jobs of strictly lower priority that may delay it. For the
    first `hold_s` seconds of its wait no job of lower priority takes devices that it could use. After that, jobs that
    can be preempted for it at once may pass, whatever their minimum run time and however many GPUs they hold. Other
    jobs may pass after `hold_fixed_s`.
    """

    timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600
    large_gpus: Annotated[int, Meta(ge=0, le=10**6)] = 0
    small_timeout_s: Annotated[int, Meta(ge=0, le=10**9)] = 86_400
    keeps_priority: bool = True
    hold_s: Annotated[int, Meta(ge=0, le=10**9)] = 300
    hold_fixed_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600

    source: ClassVar[str] = "Backfill of Kant, arXiv 2510.01256"
    tries: ClassVar[type[Tries]] = Tries
    """The class that tries the waiting jobs. A subclass of `Tries` may skip some jobs."""
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="none", preemption="evict")

    @property
    def passing_evictor(self) -> Preemption | None:
        return ONLY_PASSERS if self.keeps_priority else None

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue, shape)

    def held_by(self, cycle: CyclePlan, row: int) -> Outranked | None:
        if not cycle.pending.mixed:
            return None
        shape, holds = cycle.state.shape_of(row), self._holds(cycle)
        holding = holds.holders(row, shape)
        mark = cycle.placer.trial.checkpoint()
        result = holds.beside(row, shape, holding) if holding is not None else None
        cycle.placer.trial.rollback(mark)
        return result if isinstance(result, Outranked) else None

    def run(self, cycle: CyclePlan) -> None:
        holds = self._holds(cycle) if cycle.pending.mixed else None
        if holds is not None:
            cycle.growth_held_until = holds.growth_until
        try_in_order(cycle, holds, self.tries)
        state, pending, large = cycle.state, cycle.pending, self.large_gpus * GPU
        if not state.pending:
            return
        # Where the first head lacks quota or waits for a node, the next head of the same pools is served.
        heads = pending.heads(not (cycle.limited or cycle.by_share or state.shapes.await_nodes), large)
        if cycle.by_share:
            heads = sorted(heads, key=lambda head: cycle.share(state.jobs.item(head[0], J_QUEUE)))
        late: _Late = cycle, holds, []
        await_nodes = cycle.node_waits or state.shapes.await_nodes
        queues = 1 if state.quota_usage.tree is None else 1 + len(state.queues)
        serve = _built(bool(cycle.limited or await_nodes), holds is not None)
        next_late = serve(late, heads, pending.buckets, state.jobs, self, queues, cycle.now)
        if next_late < FOREVER:
            cycle.wake_at(next_late)
        if late[2]:
            from kant.queueing.preemption.backfilled import await_starts

            await_starts(cycle, late[2])

    def _holds(self, cycle: CyclePlan) -> PriorityHolds:
        from kant.queueing.priority import PriorityHolds  # loaded with the first queue of several priorities

        return PriorityHolds(cycle, self.hold_s * SECOND, self.hold_fixed_s * SECOND)


_Late = tuple[CyclePlan, "PriorityHolds | None", list[tuple[int, Shape]]]
"""The cycle, its priority holds, and the late heads that may preempt more jobs later."""


def _waits(late: _Late, row: int, index: int) -> bool:
    cycle, shape = late[0], late[0].state.shapes.shapes[index]
    if cycle.limited:
        admission = cycle.admission
        closed = admission.closed(row) is not None
        if closed or None not in [admission.shortage(row, option) for option in admission.options(row, shape)]:
            return True
    if not (cycle.node_waits or shape.ask.node_wait):
        return False
    node_wait = awaits_node_until(cycle.state, row, cycle.now)
    cycle.wake_at(node_wait)
    return node_wait > 0


def _is_held(late: _Late, row: int, bucket: int) -> bool:
    cycle, holds, _ = late
    return holds is not None and holds.holders(row, cycle.state.shape_of(row)) is not None


def _take_places(late: _Late, row: int, index: int, bucket: int) -> int:
    from kant.queueing.late_heads import MAY_NOT, STARTS, STAYS
    from kant.queueing.preemption.backfilled import preempt_backfilled  # loaded with the first late head

    cycle, shape = late[0], late[0].state.shapes.shapes[index]
    if not cycle.state.books:
        allocation = preempt_backfilled(cycle, row, shape)
    else:
        with cycle.beside_bookings(row):
            allocation = preempt_backfilled(cycle, row, shape)
    if not isinstance(allocation, NotNow):
        cycle.start(row, allocation)
        cycle.pending.took(bucket)
        return STARTS
    if cycle.order.outgrown or not allocation.definitive:
        late[2].append((row, shape))
    return STAYS if allocation.definitive and shape.ask.preempts else MAY_NOT


@cache
def _built(limited: bool, holds: bool) -> ServeHeads:
    from kant.queueing.late_heads import make_serve_heads  # loaded with the first job that cannot start

    return make_serve_heads(
        _waits if limited else None, _is_held if holds else None, _take_places, lambda function: function
    )
