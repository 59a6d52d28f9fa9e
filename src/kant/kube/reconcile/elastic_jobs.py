"""Jobs of gangs that may have more pods or fewer while they run: their floors, and what their pods accept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from kant.kube.objects.views import Pod
from kant.kube.translate.groups import INDEX, GroupRef
from kant.model.job import Demand, Job, PodGroup, Role


def may_be_elastic(job: Job) -> bool:
    """Whether it is known which pods of a job may go, and where more may come (`kant.cluster.asks`).

    Not for pods of MIG instances: those that are there hold what their node has cut, which is not what they ask for.
    """
    plain = not (job.affinity_group or job.apart or job.near or job.base_job)
    return plain and not any(one.within or one.demand.profile for one in job.groups)


def with_floors(job: Job, floors: Counter[Demand]) -> Job:
    """The job with so many pods of each group as its floor; all of them where nothing is said."""
    return sized(job, [(group.count, group.demand) for group in job.groups], floors)


def sized(job: Job, counts: Sequence[tuple[int, Demand]], floors: Counter[Demand]) -> Job:
    """The job with groups of so many pods, and these floors."""
    groups = (
        PodGroup(count, demand, floor=floors[demand] if 0 < floors[demand] < count else 0) for count, demand in counts
    )
    return replace(job, groups=tuple(groups))


def role_of(job: Job) -> Role:
    """What all pods of a job accept."""
    return Role(job.models, node_set=job.node_set)


def roles_of(job: Job) -> dict[Demand, Role]:
    """What the pods of a job accept, by what they ask for."""
    roles = job.roles or (role_of(job),) * len(job.groups)
    return {group.demand: role for group, role in zip(job.groups, roles, strict=True)}


def identity(pod: Pod) -> str:
    """By what a pod made anew is known for the same: its completion index, or its name."""
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
    return f"#{said[INDEX]}" if INDEX in said else pod.metadata.name


def has_been_scaled(group: GroupRef | None, bound: list[Pod], waiting: list[Pod]) -> bool:
    """Whether an indexed Job, or a JobSet of one, ran whole with its bound pods before it was given more: those that
    wait are all later.

    Else nobody could tell such a Job, after a restart, from one of which only a part has been bound.
    """
    if group is None or group.source not in ("jobs", "jobset") or not waiting:
        return False
    indices = [
        [int(identity(pod)[1:] or 0) for pod in pods if identity(pod)[1:].isdigit()] for pods in (bound, waiting)
    ]
    if not all(indices) or max(indices[0]) != len(bound) - 1 or min(indices[1]) <= max(indices[0]):
        return False
    at = [one.last_transition_time or "" for p in bound for one in p.status.conditions if one.type == "PodScheduled"]
    return bool(at) and max(at) < min(pod.metadata.creation_timestamp for pod in waiting)
