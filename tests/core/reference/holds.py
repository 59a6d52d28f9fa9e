"""Priority is kept: which blocked jobs hold back which waiting jobs (design note 51)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.core.reference.ledger import BORROWING
from tests.core.reference.order import rank
from tests.core.reference.places import takes_some
from tests.core.reference.world import LiveJob

from kant.model.job import Job
from kant.model.units import SECOND
from kant.queueing.disciplines.backfill import Backfill

if TYPE_CHECKING:
    from tests.core.reference.plan import ReferencePlan


def holders_of(plan: ReferencePlan, live: LiveJob) -> list[tuple[LiveJob, bool]]:
    """The blocked jobs of higher priority that hold a job back now, each with whether it lacks quota."""
    discipline = plan.profile.discipline
    if not plan.keeps_priority or not isinstance(discipline, Backfill):
        return []
    guaranteed = any(one.name == live.job.queue and one.min_run for one in plan.world.queues.queues)
    at_once = plan.rights.may_stop(live) and not guaranteed
    hold = discipline.hold_s if at_once else max(discipline.hold_s, discipline.hold_fixed_s)
    found, seen = list[tuple[LiveJob, bool]](), set[tuple[object, ...]]()
    for one in sorted(plan.in_order(), key=lambda one: rank(plan.world, plan.profile.order, one, ())[1:]):
        first = plan.equals(one) not in seen
        seen.add(plan.equals(one))
        lowered = plan.world.is_over_budget(one.job.queue, one.job.user, "soft")
        if first and not lowered and one.job.priority > live.job.priority and one.since + hold * SECOND > plan.now:
            by_quota = competes(plan, one, live)
            if by_quota is not None:
                found.append((one, by_quota))
    return found


def competes(plan: ReferencePlan, one: LiveJob, live: LiveJob) -> bool | None:
    """Whether a job takes what a blocked job lacks: a place (False) or quota (True); None if neither."""
    if plan.profile.order.shares and one.job.queue != live.job.queue:
        return None
    near = plan.rights.shares_nodes(one, live.job, None)
    options = [*plan.options(one)]
    if plan.world.queues.queues and not options:
        return None
    lacks = [plan.ledger.lacks(one.job, amounts) for _, amounts in options]
    if "" in lacks:
        return False if near and not has_more_right(plan, live, one) else None
    same = one.job.queue == live.job.queue
    return True if same and any(lack != "user" or one.job.user == live.job.user for lack in lacks) else None


def has_more_right(plan: ReferencePlan, live: LiveJob, one: LiveJob) -> bool:
    """Whether a job is entitled to its request, while a blocked job of another queue would borrow."""
    if plan.rules.reclaim == "off" or not plan.ledger.keys or one.job.queue == live.job.queue:
        return False
    return borrows(plan, one.job) and not borrows(plan, live.job)


def borrows(plan: ReferencePlan, job: Job) -> bool:
    amounts = plan.ledger.asked_anywhere(job)
    return not plan.rights.limited(job, amounts) or plan.ledger.reach(job, amounts) == BORROWING


def start_beside(plan: ReferencePlan, live: LiveJob, holders: list[tuple[LiveJob, bool]]) -> bool:
    """Start a held job on nodes that none of its holders can ever use; returns whether it started."""
    if any(by_quota for _, by_quota in holders):
        return False
    useful = {room.node.name for room in plan.world.empty() for one, _ in holders if takes_some(room, one.job)}
    return plan.start_now(live, useful)
