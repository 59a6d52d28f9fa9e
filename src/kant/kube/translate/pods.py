"""Turns pods into a Job of the core's model: one pod, or all pods of a gang."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.objects.times import microseconds
from kant.kube.translate.annotations import Annotations, annotations_of
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.groups import NODE_POOL
from kant.kube.translate.levels import Levels
from kant.kube.translate.neighbours import wanted_beside
from kant.kube.translate.node_sets import EVERYWHERE
from kant.kube.translate.nodes import PRODUCT
from kant.kube.translate.orders import ordered, priority_of
from kant.kube.translate.resources import requests_of
from kant.kube.translate.selectors import Selection, check_neighbours, selection_of
from kant.kube.translate.volumes import NO_STORAGE, Storage, reaching
from kant.model.errors import InputError
from kant.model.job import LEVELS, Demand, Job, Level, PodGroup, Role
from kant.model.preference import Preferences
from kant.model.rules import PodRules

_DIGITS = re.compile(r"([0-9]+)")
_HASH = re.compile(r"(?:-(?:[0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5,10}))+$")
"""Suffixes that controllers append: numbers, or letters of the alphabet in k8s.io/apimachinery, util/rand."""

Filters = Callable[[k.Pod], tuple[k.Requirement, ...]]
"""Returns requirements of a pod for its node that are not in its spec, and may hold only for some time."""

Child = tuple[str, Level]
"""A group within the gang, and a topology level: one domain of the level must hold all pods of the group."""

NO_CHILD: Child = ("", "")


class Setting(NamedTuple):
    """What the translation of pods depends on, besides the pods. `epoch` is time zero in microseconds since 1970.

    `node_sets` returns the name of a selection's node set, `demand` a pod's requests (the second argument names the pod
    in errors), `preferences` what a pod prefers, `rules` its classes and affinity rules, and `child` its group within
    the gang. They may raise InputError. The defaults mean that nodes and pods have no such properties.
    """

    levels: Levels
    node_sets: Callable[[Selection], str] = lambda selection: EVERYWHERE
    epoch: int = 0
    storage: Storage = NO_STORAGE
    filters: Filters | None = None
    demand: Callable[[k.Pod, str], Demand] = lambda pod, where: requests_of(pod.spec, where).demand
    preferences: Callable[[k.Pod], Preferences] = lambda pod: Preferences()
    rules: Callable[[k.Pod], PodRules] = lambda pod: PodRules()
    child: Callable[[k.Pod], Child] = lambda pod: NO_CHILD


class GangJob(NamedTuple):
    """A job, and the names of its pods, sorted by the job's groups: first the pods of the first group."""

    job: Job
    pods: tuple[str, ...]


class _Read(NamedTuple):
    """One translated pod."""

    demand: Demand
    role: Role
    rules: PodRules
    annotations: Annotations
    preferences: Preferences
    child: Child

    @property
    def kind(self) -> tuple[Demand, Role, PodRules, Preferences, Child]:
        """A key that is equal for interchangeable pods, which form one group of the job."""
        return self.demand, self.role, self.rules, self.preferences, self.child


def about(pod: k.Pod) -> str:
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"


def selection(
    pod: k.Pod, storage: Storage = NO_STORAGE, filters: Filters | None = None, models: str = PRODUCT
) -> Selection:
    """Return the requirements of a pod for its node, except GPUs, CPU and memory. Raises InputError.

    `models` is a label of the nodeSelector to leave out, since the job states it as its GPU model; "": none.
    """
    where = f"{about(pod)}, spec"
    others = requests_of(pod.spec, where).others
    if pod.spec.by_claim:  # a node filter determines which nodes fit
        others = tuple(one for one in others if one[0] not in pod.spec.by_claim)
    found = selection_of(pod.spec, where, others, models=models)
    pool = (pod.metadata.labels or {}).get(NODE_POOL)
    if pool:
        found = found._replace(always=(*found.always, k.Requirement(NODE_POOL, "In", (pool,))))
    narrowed = filters(pod) if filters is not None else ()
    if narrowed:
        found = found._replace(always=(*found.always, *narrowed))
    return reaching(found, pod, storage) if pod.spec.volumes or pod.spec.resource_claims else found


def whole_selection(pod: k.Pod, storage: Storage = NO_STORAGE) -> Selection:
    """Return all requirements of a pod for its node, including the GPU model. Raises InputError."""
    return selection(pod, storage, models="")


def natural(pod: k.Pod) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that puts `worker-2` before `worker-10`: the order of ranks."""
    parts = _DIGITS.split(pod.metadata.name)
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts)), pod.metadata.name


def ranked(pods: Iterable[k.Pod]) -> list[k.Pod]:
    """Return pods in the order of their ranks: sorted by name, with numbers in numerical order."""
    return sorted(pods, key=natural)


def job_of(name: str, pods: Sequence[k.Pod], setting: Setting, spec: GroupSpec | None = None) -> GangJob:
    """Return the job `name` of these pods, at least one, all of one namespace. Raises InputError for an invalid pod.

    `spec` has the properties of their group, None for a single pod.
    """
    pods = ranked(pods)
    groups: dict[tuple[Demand, Role, PodRules, Preferences, Child], list[str]] = {}
    read = [_read(pod, setting, spec) for pod in pods]
    first, one = pods[0], read[0]
    for pod, other in zip(pods, read, strict=True):
        groups.setdefault(other.kind, []).append(pod.metadata.name)
        for field, own, common in zip(Annotations._fields, other.annotations, one.annotations, strict=True):
            if own != common:
                raise InputError(f"{about(pod)}, {field}", f"the value of {about(first)} in its gang, {common!r}", own)
    annotations = one.annotations
    within = _together(pods, setting.levels, annotations)
    roles, rules = tuple(kind[1] for kind in groups), tuple(kind[2] for kind in groups)
    likes = tuple(kind[3] for kind in groups)
    children = [kind[4] for kind in groups if kind[4] != NO_CHILD]
    if len(set(children)) < len(children):
        name = next(name for name, _ in children if sum(one == name for one, _ in children) > 1)
        raise InputError(f"PodGroup {name}", "pods with equal requests, or no topology constraint of its own")
    parts = [PodGroup(len(own), kind[0]) for kind, own in groups.items()]
    if annotations.cuts or children:
        parts = [_cut(part, annotations.cuts, kind[4][1]) for part, kind in zip(parts, groups, strict=True)]
    alike = roles[0] if len(set(roles)) == 1 else Role()
    own = max(priority_of(pod, about(pod)) for pod in pods)
    named = spec.priority if spec is not None and not any(ordered(pod)[1] for pod in pods) else None
    job = Job(
        id=name,
        submit=min(moment(pod, setting.epoch) for pod in pods),
        groups=tuple(parts),
        queue=annotations.queue,
        user=first.metadata.namespace,
        priority=own if named is None else named,
        models=alike.models,
        estimate=annotations.estimate,
        preemptible=annotations.preemptible,
        name=title(first),
        limit=annotations.limit,
        within=within or annotations.within,
        within_required=bool(within) or annotations.within_required,
        node_set=alike.node_set,
        training=annotations.training,
        reservation=annotations.reservation,
        checkpoint=annotations.checkpoint,
        node_wait=annotations.node_wait,
        preempts=(spec is None or spec.preempts) and all(pod.spec.preemption_policy != "Never" for pod in pods),
        roles=roles if len(set(roles)) > 1 else (),
        preferences=likes if any(own != Preferences() for own in likes) else (),
        rules=() if set(rules) == {PodRules()} else rules,
    )
    return GangJob(job, tuple(pod for own in groups.values() for pod in own))


def _cut(group: PodGroup, cuts: Sequence[tuple[Level, int]], child: Level) -> PodGroup:
    """Return the group divided into segments by `cuts`, within one domain of the level `child` ("": any number)."""
    found = [*([(child, 0)] if child else []), *cuts]
    if not found:
        return group
    (within, segment), *inner = found
    return replace(group, within=within, segment=segment, inner=tuple(inner))


def _read(pod: k.Pod, setting: Setting, spec: GroupSpec | None) -> _Read:
    where = f"{about(pod)}, spec"
    demand = setting.demand(pod, where)
    check_neighbours(pod, where)
    select = selection(pod, setting.storage, setting.filters)
    own = (pod.metadata.labels or {}).get(NODE_POOL, "")
    if spec is not None and spec.node_pool not in ("", own):
        raise InputError(f"{about(pod)}, label {NODE_POOL}", f"its group's pool, {spec.node_pool}", own or None)
    product = model_asked(pod)
    return _Read(
        demand,
        Role((product,) if product else (), node_set=setting.node_sets(select)),
        setting.rules(pod),
        annotations_of(pod, setting.levels, spec, about(pod)),
        setting.preferences(pod),
        setting.child(pod),
    )


def model_asked(pod: k.Pod) -> str:
    """Return the GPU model that a pod's nodeSelector names; "" for none."""
    return (pod.spec.node_selector or {}).get(PRODUCT, "")


def _together(pods: Sequence[k.Pod], levels: Levels, annotations: Annotations) -> Level:
    """Return the level of which one domain must hold the gang, by required affinity to its own pods; "" for none.

    The rule's label must be the label of a level. All pods of the gang must have the rule, or all but the pod that it
    selects. Other affinity within the gang is checked when the pods are placed.
    """
    found: list[Level] = [annotations.within] if annotations.within_required and annotations.within else []
    asked = False
    rules = dict.fromkeys(rule for pod in pods for rule in wanted_beside(pod)) if len(pods) > 1 else {}
    for rule in rules:
        level, others = levels.level_of(rule.key), [pod for pod in pods if rule not in wanted_beside(pod)]
        if level and (not others or (len(others) == 1 and [pod for pod in pods if rule.is_about(pod)] == others)):
            asked = True
            found.append(level)
    return min(found, key=LEVELS.index) if asked else ""


def moment(pod: k.Pod, epoch: int) -> int:
    """Return when the pod was created, in microseconds after time zero; negative if before it."""
    return microseconds(pod.metadata.creation_timestamp, f"{about(pod)}, metadata.creationTimestamp") - epoch


def title(pod: k.Pod) -> str:
    """Return the name that users know: that of a pod's controller, or of the pod, without generated suffixes."""
    labels = pod.metadata.labels or {}
    for key in ("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "ray.io/cluster"):
        if labels.get(key):
            return _HASH.sub("", labels[key])
    owner = pod.metadata.controller.name or pod.metadata.name
    return _HASH.sub("", owner) or owner
