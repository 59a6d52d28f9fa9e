"""What a scheduler asks of its profile: the pending queue that it needs, and when a cycle could decide nothing."""

from __future__ import annotations

from kant.cluster.state import ClusterState
from kant.placement.placer import Placer
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.pending import PendingQueue
from kant.queueing.router import Router
from kant.scheduler.profile import Profile, draws


def pending_queue(state: ClusterState, profile: Profile, placer: Placer) -> PendingQueue:
    """The pending queue of a state, as the profile's order, discipline and preemption need it."""
    by, bucket_of = profile.preemption, profile.discipline.bucket if profile.discipline.buckets else None
    fair, by_chance = by is not None and by.reclaim == "fair-share", draws(profile.placement)
    pending = PendingQueue(
        state, profile.order, profile.requeue, bucket_of, by is not None, by_chance, fair, placer.may_fit
    )
    pending.keeps_priority = profile.keeps_priority
    return pending


def acting(profile: Profile, state: ClusterState) -> Profile:
    """The profile by which is decided now: of a router that of the policy which acts."""
    return profile if profile.router is None else profile.routes.get(profile.router.acts(state), profile)


def look(cycle: CyclePlan, router: Router) -> None:
    """Say at the end of a cycle that another policy acts, where that is due: from the next cycle on, which is soon."""
    if cycle.state.pending and (switch := router.look(cycle.state, cycle.now)) is not None:
        cycle.plan.decisions.append(switch)
        cycle.wake_at(cycle.now + 1)


def is_idle(state: ClusterState) -> bool:
    """Whether a cycle could decide nothing where nobody waits: nobody who runs may have to stop, move or grow.

    That is so under a profile that does not look at running jobs (`Profile.looks_at_running`).
    """
    if state.limits_runs or state.elastic or state.burst_replicas:
        return False
    tree, health = state.quota_usage.tree, state.health
    return not (health.drains or health.broken) and (tree is None or all(tree.runs))
