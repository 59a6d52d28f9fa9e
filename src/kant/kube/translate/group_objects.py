"""Reads the properties of a group from the object that defines it: a PodGroup, or a workload of some controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kant.kube.objects.validation import whole
from kant.kube.objects.views import Unstructured
from kant.kube.translate import groups as g
from kant.kube.translate.group_spec import GroupSpec, Part
from kant.kube.translate.parts import gangs_of, later_parts
from kant.model.errors import InputError

Spec = Mapping[str, Any]


def group_spec(source: str, found: Unstructured, part: str = "") -> GroupSpec:
    """Return the properties of a group from its object at `GroupRef.paths`. `part` is the group's name in the object;
    for a JobSet, the first job of a gang. Raises InputError if the object cannot be used.
    """
    where = f"{found.kind or source} {found.metadata.namespace}/{found.metadata.name}, spec"
    try:
        spec = msgspec.json.decode(found.spec)
    except (msgspec.MsgspecError, RecursionError):
        spec = None
    if not isinstance(spec, dict):
        raise InputError(where, "an object")
    read = _READERS.get(source)
    if read is None:
        raise InputError(where, f"one of these kinds of groups: {', '.join(_READERS)}", source)
    try:
        known = read(spec if source != g.WORKLOAD else _part(spec, part, where), where)
        if known.gangs and part:
            known = _one_gang(_replicated_jobs(spec, where), part)
    except (AttributeError, TypeError):
        raise InputError(where, "fields of the right types") from None
    labels = found.metadata.said
    own = labels.get(g.MIN_AVAILABLE)
    least = whole(f"{where}, {g.MIN_AVAILABLE}", own, 1) if own and not known.alone else known.least
    pool = labels.get(g.NODE_POOL, "") if source == g.RUNAI else ""
    if own and source != g.VOLCANO:
        known = known._replace(tasks=(), later=(), gangs=())
    return known._replace(least=least, created=found.metadata.creation_timestamp, node_pool=pool)


def _part(spec: Spec, part: str, where: str) -> Spec:
    """Return a group of a Workload (Kubernetes 1.35) in the form of a PodGroup, which replaced it in later releases."""
    own = next((one for one in spec.get("podGroups") or [] if one.get("name") == part), None)
    if own is None:
        raise InputError(f"{where}.podGroups", f"a group {part}, which its pods name")
    return {"schedulingPolicy": own.get("policy")}


def _upstream(spec: Spec, where: str) -> GroupSpec:
    mode = spec.get("disruptionMode")  # a string until 1.36, then an object
    together = mode == "PodGroup" or (isinstance(mode, dict) and mode.get("all") is not None)
    policy = spec.get("schedulingPolicy") or {}
    gang = policy.get("gang")
    most = "minGroupCount" if gang is not None and "minGroupCount" in gang else "minCount"
    least = whole(f"{where}.schedulingPolicy.gang.{most}", gang.get(most), 1) if gang is not None else 0
    constraints = (spec.get("schedulingConstraints") or {}).get("topology") or []
    if len(constraints) > 1:
        raise InputError(f"{where}.schedulingConstraints.topology", "one constraint")
    required = _text(constraints[0], "key", f"{where}.schedulingConstraints.topology") if constraints else ""
    priority = spec.get("priority")
    return GroupSpec(
        least,
        priority=None if priority is None else whole(f"{where}.priority", priority, -(1 << 31)),
        priority_class=_text(spec, "priorityClassName", where),
        required=required,
        together=together,
        preempts=_text(spec, "preemptionPolicy", where) != "Never",
        parent=_text(spec, "parentCompositePodGroupName", where),
    )


def _kai(spec: Spec, where: str) -> GroupSpec:
    for field in ("subGroups", "minSubGroup"):
        if spec.get(field):
            raise InputError(f"{where}.{field}", "no groups inside a group, which Kant does not support")
    asked = spec.get("topologyConstraint") or {}
    word = _text(spec, "preemptibility", where)
    if word not in ("", "preemptible", "non-preemptible"):
        raise InputError(f"{where}.preemptibility", "preemptible or non-preemptible", word)
    return GroupSpec(
        _member(spec, where),
        queue=_text(spec, "queue", where),
        priority_class=_text(spec, "priorityClassName", where),
        required=_text(asked, "requiredTopologyLevel", f"{where}.topologyConstraint"),
        preferred=_text(asked, "preferredTopologyLevel", f"{where}.topologyConstraint"),
        preemptible=None if not word else word == "preemptible",
        node_wait=_text(spec, "preemptionDelay", where),
    )


def _volcano(spec: Spec, where: str) -> GroupSpec:
    if spec.get("networkTopology"):
        raise InputError(f"{where}.networkTopology", "no tiers of HyperNodes: name a level of a Topology instead")
    if spec.get("subGroupPolicy"):
        raise InputError(f"{where}.subGroupPolicy", "no groups inside a group, which Kant does not support")
    least, least_of = _member(spec, where), spec.get("minTaskMember") or {}
    tasks = tuple((name, whole(f"{where}.minTaskMember.{name}", pods)) for name, pods in sorted(least_of.items()))
    # Volcano checks the tasks only if `minMember` covers them (CheckTaskReady in pkg/scheduler/api/job_info.go)
    counts = sum(pods for _, pods in tasks) <= least
    return GroupSpec(
        least,
        tasks=tuple((name, pods) for name, pods in tasks if pods) if counts else (),
        queue=_text(spec, "queue", where),
        priority_class=_text(spec, "priorityClassName", where),
    )


def _plugins(spec: Spec, where: str) -> GroupSpec:
    return GroupSpec(_member(spec, where))


def _member(spec: Spec, where: str) -> int:
    """Return `minMember`, the minimum number of pods in Volcano, KAI and scheduler-plugins; 1 without it."""
    return whole(f"{where}.minMember", spec.get("minMember", 1))


def _job(spec: Spec, where: str) -> GroupSpec:
    """Return a gang if the Job asks for one (Kubernetes 1.37, KEP-5547), unless its pods run or fail independently."""
    pods, every = _pods_of_job(spec, where), spec.get("completions")
    if spec.get("backoffLimitPerIndex") is not None or (every is not None and pods < whole(where, every)):
        return GroupSpec(0, alone=True)
    said = spec.get("scheduling") or {}
    gang = (said.get("schedulingPolicy") or {}).get("gang")
    if gang is None:
        return GroupSpec(0)
    return _upstream({**said, "schedulingPolicy": {"gang": {"minCount": pods, **gang}}}, f"{where}.scheduling")


def _pods_of_job(spec: Spec, where: str) -> int:
    side = whole(f"{where}.parallelism", spec.get("parallelism", 1))
    all_of_it = spec.get("completions")
    return side if all_of_it is None else min(side, whole(f"{where}.completions", all_of_it))


def _jobset(spec: Spec, where: str) -> GroupSpec:
    """Return all jobs of the set as one gang, or as several gangs if some jobs wait until others are complete."""
    gangs = gangs_of(_replicated_jobs(spec, where))
    if len(gangs) > 1:
        return GroupSpec(0, gangs=tuple(tuple(part.name for part in gang) for gang in gangs))
    return _of_gang(gangs[0]) if gangs else GroupSpec(0)


def _one_gang(parts: Sequence[Part], first: str) -> GroupSpec:
    """Return the gang that begins with the part `first`. If there is no such gang, each pod runs alone."""
    return next((_of_gang(gang) for gang in gangs_of(parts) if gang[0].name == first), GroupSpec(0))


def _of_gang(gang: Sequence[Part]) -> GroupSpec:
    return GroupSpec(sum(part.pods for part in gang), later=later_parts(gang))


def _replicated_jobs(spec: Spec, where: str) -> list[Part]:
    """Return the jobs of a JobSet, each with the jobs that must be ready or complete before it is created."""
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    parts: list[Part] = []
    for number, job in enumerate(spec.get("replicatedJobs") or []):
        place = f"{where}.replicatedJobs[{number}]"
        own = ((job.get("template") or {}).get("spec")) or {}
        pods = whole(f"{place}.replicas", job.get("replicas", 1)) * _pods_of_job(own, f"{place}.template.spec")
        after = [
            (_text(one, "name", place), _text(one, "status", place) == "Complete") for one in job.get("dependsOn") or []
        ]
        if in_order and parts:
            after.append((parts[-1].name, False))
        name = _text(job, "name", place) or f"[{number}]"
        parts.append(Part(name, pods, own.get("template") or {}, tuple(after)))
    return parts


def _lws(spec: Spec, where: str) -> GroupSpec:
    """Return one group of a LeaderWorkerSet: a leader, and workers that may be created only after it is ready."""
    template = spec.get("leaderWorkerTemplate") or {}
    size = whole(f"{where}.leaderWorkerTemplate.size", template.get("size", 1))
    if spec.get("startupPolicy") != "LeaderReady" or size < 2:
        return GroupSpec(size)
    workers = Part(g.WORKERS, size - 1, template.get("workerTemplate") or {}, ((g.LEADER, False),))
    return GroupSpec(size, later=(workers,))


def _kubeflow(spec: Spec, where: str) -> GroupSpec:
    policy = ((spec.get("runPolicy") or {}).get("schedulingPolicy")) or {}
    kinds = {key: value for key, value in spec.items() if key.endswith("ReplicaSpecs")}
    elastic = spec.get("elasticPolicy")
    tasks: dict[str, int] = {}
    for key, roles in sorted(kinds.items()):
        for role, own in roles.items():
            if role == "Launcher" and spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
                continue  # the launcher is created only once the workers run
            pods = whole(f"{where}.{key}.{role}.replicas", own.get("replicas", 1))
            if role == "Worker" and elastic is not None:
                pods = min(whole(f"{where}.elasticPolicy.minReplicas", elastic.get("minReplicas", 1)), pods)
            tasks[role.lower()] = tasks.get(role.lower(), 0) + pods
    least = policy.get("minAvailable")
    return GroupSpec(
        sum(tasks.values()) if least is None else whole(f"{where}.runPolicy.schedulingPolicy.minAvailable", least),
        tasks=tuple((role, pods) for role, pods in tasks.items() if pods)
        if elastic is not None and least is None
        else (),
        queue=_text(policy, "queue", where),
        priority_class=_text(policy, "priorityClass", where),
    )


def _ray(spec: Spec, where: str) -> GroupSpec:
    """Return the pods of a Ray cluster that must run: the head, and each group's minimum of workers."""
    scales = spec.get("enableInTreeAutoscaling") is True
    pods, tasks = 1, [("headgroup", 1)]
    for number, group in enumerate(spec.get("workerGroupSpecs") or []):
        place = f"{where}.workerGroupSpecs[{number}]"
        if group.get("suspend") is True:
            continue  # a suspended group has no pods
        field = "minReplicas" if scales or "replicas" not in group else "replicas"
        hosts = whole(f"{place}.numOfHosts", group.get("numOfHosts", 1))
        own = whole(f"{place}.{field}", group.get(field, 0)) * hosts
        pods += own
        name = _text(group, "groupName", place)
        tasks += [(name, own)] if own and name else []
    return GroupSpec(pods, tasks=tuple(tasks) if scales else ())


def _text(spec: Spec, field: str, where: str) -> str:
    value = spec.get(field) or ""
    if not isinstance(value, str):
        raise InputError(f"{where}.{field}", "text", value)
    return value


_READERS: dict[str, Callable[[Spec, str], GroupSpec]] = {
    g.UPSTREAM: _upstream,
    g.WORKLOAD: _upstream,
    g.COMPOSITE: _upstream,
    g.RUNAI: _kai,
    g.VOLCANO: _volcano,
    g.PLUGINS: _plugins,
    "jobset": _jobset,
    "leaderworkerset": _lws,
    **dict.fromkeys(g.KUBEFLOW.values(), _kubeflow),
    "rayclusters": _ray,
    "jobs": _job,
}
