"""What a scheduler derives from its profile: the pending queue, the active policy, and whether a cycle is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.cluster.state import ClusterState
from kant.placement.placer import Placer
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.pending import PendingQueue
from kant.scheduler.profile import Profile, draws

if TYPE_CHECKING:
    from kant.queueing.forecast import Forecast
    from kant.queueing.router import PolicyRouter


def pending_queue(state: ClusterState, profile: Profile, placer: Placer) -> PendingQueue:
    """Return a pending queue of the state, as the profile's order, discipline and preemption need it."""
    by, bucket_of = profile.preemption, profile.discipline.bucket if profile.discipline.buckets else None
    fair, by_chance = by is not None and by.reclaim == "fair-share", draws(profile.placement)
    pending = PendingQueue(
        state, profile.order, profile.requeue, bucket_of, by is not None, by_chance, fair, placer.may_fit
    )
    pending.keeps_priority = profile.keeps_priority
    return pending


def forecast(state: ClusterState, profile: Profile, placer: Placer) -> Forecast | None:
    """Return the forecast if the discipline uses one, else None. Its module is imported only if it is used."""
    if not profile.discipline.forecasts:
        return None
    from kant.queueing.forecast import Forecast

    return Forecast(state, placer.calendar, profile.estimates)


def acting(profile: Profile, state: ClusterState) -> Profile:
    """Return the profile that decides now: with a router, the profile of the active policy."""
    return profile if profile.router is None else profile.routes.get(profile.router.acts(state), profile)


def look(cycle: CyclePlan, router: PolicyRouter) -> None:
    """Switch back to the router's default policy if that is due. It acts from the next cycle, which follows at once."""
    if cycle.state.pending and (switch := router.look(cycle.state, cycle.now)) is not None:
        cycle.plan.decisions.append(switch)
        cycle.wake_at(cycle.now + 1)


def is_idle(state: ClusterState) -> bool:
    """Return whether a cycle without waiting jobs decides nothing: no running job may have to stop, move or grow.

    The answer is valid only for a profile that does not look at running jobs (`Profile.looks_at_running`).
    """
    if state.limits_runs or state.elastic or state.burst_replicas:
        return False
    tree, health = state.quota_usage.tree, state.health
    return not (health.drains or health.broken) and (tree is None or all(tree.runs))
