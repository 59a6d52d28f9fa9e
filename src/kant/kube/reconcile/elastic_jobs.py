"""The jobs of elastic gangs: their floors (minimum pods), and the nodes that their pods accept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects.views import Pod
from kant.kube.translate.groups import INDEX, GroupRef
from kant.model.job import Demand, Job, PodGroup, Role
from kant.model.rules import PodRules


class Kind(NamedTuple):
    """The properties that distinguish the pods of one group of a job from those of the others.

    `role` is None if the accepted nodes are unknown: the pods were bound before Kant saw them.
    """

    demand: Demand
    role: Role | None
    rules: PodRules


def may_be_elastic(job: Job) -> bool:
    """Whether a job may shrink and grow: Kant knows which of its pods may be evicted, and where more may run.

    False for pods with MIG instances: a bound pod holds instances of its node, which may differ from its request.
    """
    plain = not (job.affinity_group or job.apart or job.near or job.base_job)
    return plain and not any(one.within or one.demand.profile for one in job.groups)


def with_floors(job: Job, floors: Counter[int]) -> Job:
    """Return the job with these floors (minimum pods) by group. A group without a floor needs all of its pods."""
    return sized(job, [group.count for group in job.groups], floors)


def sized(job: Job, counts: Sequence[int], floors: Counter[int]) -> Job:
    """Return the job with these numbers of pods and floors (minimum pods), by group."""
    groups = (
        PodGroup(count, group.demand, floor=floors[at] if 0 < floors[at] < count else 0)
        for at, (count, group) in enumerate(zip(counts, job.groups, strict=True))
    )
    return replace(job, groups=tuple(groups))


def role_of(job: Job) -> Role:
    """Return which GPU models and node sets all pods of a job accept."""
    return Role(job.models, node_set=job.node_set)


def kinds_of(job: Job) -> list[Kind]:
    """Return the kind of pods of each group of a job."""
    roles = job.roles or (role_of(job),) * len(job.groups)
    rules = job.rules or (PodRules(),) * len(job.groups)
    each = zip(job.groups, roles, rules, strict=True)
    return [Kind(group.demand, role, own) for group, role, own in each]


def identity(pod: Pod) -> str:
    """Return what identifies a pod across re-creation: its completion index, or its name."""
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}  # faster than `Meta.said`
    return f"#{said[INDEX]}" if INDEX in said else pod.metadata.name


def has_been_scaled(group: GroupRef | None, bound: list[Pod], waiting: list[Pod]) -> bool:
    """Whether an indexed Job, or a JobSet of one Job, ran complete with its bound pods and was scaled up later: all
    waiting pods have later indices and are younger.

    Without this check, such a Job would look partially bound after a restart.
    """
    if group is None or group.source not in ("jobs", "jobset") or not waiting:
        return False
    indices = [
        [int(identity(pod)[1:] or 0) for pod in pods if identity(pod)[1:].isdigit()] for pods in (bound, waiting)
    ]
    if not all(indices) or max(indices[0]) != len(bound) - 1 or min(indices[1]) <= max(indices[0]):
        return False
    at = [one.last_transition_time or "" for pod in bound if (one := pod.scheduled) is not None]
    return bool(at) and max(at) < min(pod.metadata.creation_timestamp for pod in waiting)
