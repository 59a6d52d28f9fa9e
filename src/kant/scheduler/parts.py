"""What a scheduler asks of its profile: the pending queue that it needs, and when a cycle could decide nothing."""

from __future__ import annotations

from kant.cluster.state import ClusterState
from kant.placement.placer import Placer
from kant.queueing.pending import PendingQueue
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


def is_idle(state: ClusterState) -> bool:
    """Whether a cycle could decide nothing where nobody waits: nobody who runs may have to stop, move or grow.

    That is so under a profile that does not look at running jobs (`Profile.looks_at_running`).
    """
    if state.limits_runs or state.elastic or state.burst_replicas:
        return False
    tree, health = state.quota_usage.tree, state.health
    return not (health.drains or health.broken) and (tree is None or all(tree.runs))
