"""Kant's own backfill, which needs no run-time estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from kant.cluster.columns import J_QUEUE, J_SINCE
from kant.cluster.shapes import Shape
from kant.model.decision import Outranked
from kant.model.taxonomy import Tags, tagged
from kant.model.units import GPU, SECOND
from kant.queueing.admission import awaits_node_until
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.ports import NotNow
from kant.queueing.preemption.policy import Preemption
from kant.queueing.tries import Tries, try_in_order

if TYPE_CHECKING:
    from kant.queueing.priority import PriorityHolds

ONLY_PASSERS = Preemption(priority=False, reclaim="off", min_run_s=0)
"""Preempts only jobs that passed the waiting one, by the rules of `CyclePlan.takes_back`."""


HeadKey = tuple[int, tuple[str, ...], bool]
"""Where the pods of a head may run (`Shape.reach`), and whether it is large."""


class Backfill(Discipline, frozen=True, tag="backfill"):
    """Jobs behind a blocked head start; once the head has waited for `timeout_s`, backfilled jobs are preempted for it.
    The head is the first in order of the jobs that compete for the same pools and are within quota. If it may not
    preempt enough of them, the first job of another queue is tried.

    With `large_gpus`, jobs of at least that many GPUs have a head of their own, and smaller heads wait for
    `small_timeout_s`: a job that fits in small gaps seldom needs preemption.

    With `keeps_priority` a blocked job is not passed by jobs of strictly lower priority that may delay it. For the
    first `hold_s` seconds of its wait no job of lower priority takes a place that it could use. After that, jobs that
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
    """What tries the waiting jobs. A subclass may skip some of them."""
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="none", preemption="evict")

    @property
    def takes_back(self) -> Preemption | None:
        return ONLY_PASSERS if self.keeps_priority else None

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue, shape)

    def held_by(self, cycle: CyclePlan, row: int) -> Outranked | None:
        if not cycle.pending.mixed:
            return None
        shape, holds = cycle.state.shape_of(row), self._holds(cycle)
        holders = holds.holders(row, shape)
        mark = cycle.placer.trial.checkpoint()
        result = holds.beside(row, shape, holders) if holders else None
        cycle.placer.trial.rollback(mark)
        return result if isinstance(result, Outranked) else None

    def run(self, cycle: CyclePlan) -> None:
        holds = self._holds(cycle) if cycle.pending.mixed else None
        if holds is not None:
            cycle.growth_held_until = holds.growth_until
        try_in_order(cycle, holds, self.tries)
        state, large = cycle.state, self.large_gpus * GPU
        served = set[HeadKey]()  # the keys of the heads that were served
        unserved: list[tuple[int, Shape]] = []  # late heads that may preempt more jobs later
        freed = False  # whether capacity was freed for one: quotas may then admit others
        # queues whose head may not preempt enough, by the nodes that it competes for
        without = set[tuple[int, HeadKey]]()
        if not state.pending:
            return
        # Where the first head lacks quota or waits for a node, the next head of the same pools is served.
        heads = cycle.pending.heads(not (cycle.limited or cycle.by_share or state.shapes.await_nodes), large)
        if cycle.by_share:
            heads = sorted(heads, key=lambda head: cycle.share(state.jobs.item(head[0], J_QUEUE)))
        for row, shape_index, bucket, kept in heads:
            shape = state.shapes.shapes[shape_index]
            is_large = shape.gpu_milli >= large
            head_key = *shape.reach, is_large
            if head_key in served:
                continue
            queue = state.jobs.item(row, J_QUEUE)
            if (queue, head_key) in without or (kept and not freed):
                continue
            if cycle.limited and _waits_for_quota(cycle, row, shape):
                continue
            if cycle.node_waits or shape.ask.node_wait:
                node_wait = awaits_node_until(state, row, cycle.now)
                cycle.wake_at(node_wait)
                if node_wait:
                    continue
            timeout = self.timeout_s if is_large else self.small_timeout_s
            until = state.jobs.item(row, J_SINCE) + timeout * SECOND
            if until <= cycle.now and holds is not None and holds.holders(row, shape):
                continue
            served.add(head_key)
            if until > cycle.now:
                cycle.wake_at(until)
                continue
            from kant.queueing.preemption.backfilled import preempt_backfilled  # loaded with the first late head

            if not state.books:
                allocation = preempt_backfilled(cycle, row, shape)
            else:
                with cycle.beside_bookings(row):
                    allocation = preempt_backfilled(cycle, row, shape)
            if not isinstance(allocation, NotNow):
                cycle.start(row, allocation)
                cycle.pending.took(bucket)
                freed = True
                continue
            if cycle.order.outgrown or not allocation.definitive:
                unserved.append((row, shape))
            if state.quota_usage.tree is not None and not (allocation.definitive and shape.ask.preempts):
                # Enough jobs were backfilled, but it may not preempt them; the head of another queue may.
                served.discard(head_key)
                without.add((queue, head_key))
        if unserved:
            from kant.queueing.preemption.backfilled import await_starts

            await_starts(cycle, unserved)

    def _holds(self, cycle: CyclePlan) -> PriorityHolds:
        from kant.queueing.priority import PriorityHolds  # loaded with the first queue of several priorities

        return PriorityHolds(cycle, self.hold_s * SECOND, self.hold_fixed_s * SECOND)


def _waits_for_quota(cycle: CyclePlan, row: int, shape: Shape) -> bool:
    """Return whether a job waits for its queue or its quota, and not for capacity."""
    admission = cycle.admission
    if admission.closed(row) is not None:
        return True
    return None not in [admission.shortage(row, option) for option in admission.options(row, shape)]
