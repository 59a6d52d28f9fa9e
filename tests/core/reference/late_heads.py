"""Late heads of `backfill`: a head that has waited too long evicts jobs that overtook it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.core.reference.holds import holders_of
from tests.core.reference.ledger import BORROWING, Amounts
from tests.core.reference.rights import Victim, best, names, victim
from tests.core.reference.world import LiveJob

from kant.model.units import SECOND
from kant.queueing.disciplines.backfill import Backfill

if TYPE_CHECKING:
    from tests.core.reference.plan import ReferencePlan

NO_CAP = 1 << 60


def serve_late_heads(plan: ReferencePlan, discipline: Backfill) -> None:
    served: set[tuple[object, ...]] = set()
    without: set[tuple[object, ...]] = set()
    for live in plan.in_order():
        large = live.job.gpu_milli >= discipline.large_gpus * 1000
        pools = frozenset(node.pool for node in plan.world.admitting(live.job))
        key = (pools, live.job.node_set, large)
        options = [option for option in plan.options(live) if plan.ledger.fits(live.job, option[1])]
        if key in served or (live.job.queue, key) in without or not options or plan.awaits_node(live):
            continue
        timeout = discipline.timeout_s if large else discipline.small_timeout_s
        late = live.since + timeout * SECOND <= plan.now
        if late and holders_of(plan, live):
            continue
        served.add(key)
        if not late:
            continue
        behind = [one for one in plan.rights.runs().values() if is_behind(plan, one, live)]
        near = [victim(one, plan.now) for one in behind if plan.rights.shares_nodes(one, live.job, None)]
        enough = len(live.job.groups) > 1 or plan.fits_without(near, live, None, starts=False)
        if live.job.preempts and (not enough or evict_backfilled(plan, live, options, behind)):
            continue
        if plan.world.queues.queues:
            served.discard(key)
            without.add((live.job.queue, key))


def is_behind(plan: ReferencePlan, running: LiveJob, head: LiveJob) -> bool:
    """Whether a running job started while the head waited, although it comes after it by priority and submission."""
    own, other = (
        (-head.job.priority, head.job.submit, head.number),
        (-running.job.priority, running.job.submit, running.number),
    )
    return plan.rights.may_stop(running) and running.started >= head.since and other > own


def evict_backfilled(
    plan: ReferencePlan, head: LiveJob, options: list[tuple[str | None, Amounts]], behind: list[LiveJob]
) -> bool:
    for model, amounts in options:
        for right, in_quota in rights_over(plan, head, amounts, behind):
            able = [
                victim(one, plan.now)
                for one in right
                if plan.rights.shares_nodes(one, head.job, model) and plan.rights.protected_until(one) <= plan.now
            ]
            found = best(able, NO_CAP, partial(suffices, plan, head, model, amounts, in_quota))
            if found is not None:
                plan.evict_for(head, found, model)
                return True
    return False


def suffices(
    plan: ReferencePlan,
    head: LiveJob,
    model: str | None,
    amounts: Amounts,
    in_quota: bool,
    victims: Sequence[Victim],
) -> bool:
    """Whether the head fits after these have left; with `in_quota` it must then be in quota."""
    own = [name for name in names(victims) if plan.world.running[name].job.queue == head.job.queue]
    if in_quota and plan.ledger.reach(head.job, amounts, own) == BORROWING:
        return False
    return plan.fits_without(victims, head, model)


def rights_over(
    plan: ReferencePlan, head: LiveJob, amounts: Amounts, behind: list[LiveJob]
) -> Iterator[tuple[list[LiveJob], bool]]:
    """The jobs that a head may stop, and whether it must be in quota after they have left."""
    limited = plan.rights.limited(head.job, amounts)
    if plan.rules.reclaim == "off" or (limited and plan.ledger.reach(head.job, amounts) != BORROWING):
        yield behind, False
        return
    borrowing = [one for one in behind if not plan.ledger.keys or plan.ledger.borrows(one.job.id) != set()]
    if limited:
        yield [one for one in behind if one in borrowing or one.job.queue == head.job.queue], True
    yield borrowing, False
