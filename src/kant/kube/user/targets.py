"""Targets of users' orders: waiting pods, a queue or a node, by the names that kubectl uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kant.kube.objects.views import Pod
from kant.kube.translate.groups import group_of
from kant.model.errors import InputError

KINDS = {
    "queue": "queue", "queues": "queue", "kq": "queue",
    "node": "node", "nodes": "node", "no": "node",
    "pod": "pod", "pods": "pod", "po": "pod",
    "job": "job", "jobs": "job",
}  # fmt: skip


class Target(NamedTuple):
    """A kind, and a name. The kind is queue, node, pod or job; "": a job or a pod."""

    kind: str
    name: str


def target_of(text: str) -> Target:
    """Parse NAME, or KIND/NAME as in kubectl. Raises InputError."""
    kind, slash, name = text.rpartition("/")
    if not name or (slash and kind not in KINDS):
        raise InputError("TARGET", "a job or a pod, queue/NAME or node/NAME", text)
    return Target(KINDS.get(kind, ""), name)


def pods_meant(pods: Iterable[Pod], target: Target) -> list[Pod]:
    """Return the pods that a target means: all pods of each gang that has a pod, owner or group of this name."""
    found = {pod.metadata.uid: (pod, gang_of(pod)) for pod in pods}
    for calls in (_is_pod, _is_owned, _is_in_group):
        named = [(pod, gang) for pod, gang in found.values() if calls(pod, target)]
        if named:
            gangs = {gang for _, gang in named}
            return [pod for pod, gang in found.values() if gang in gangs]
    return []


def gang_of(pod: Pod) -> tuple[str, ...]:
    """Return the identity of a pod's gang. For a pod in no group, or in a malformed one, it is the pod's uid."""
    try:
        group = group_of(pod)
    except InputError:
        group = None
    return group.key if group is not None else (pod.metadata.uid,)


def _is_pod(pod: Pod, target: Target) -> bool:
    return target.kind != "job" and pod.metadata.name == target.name


def _is_owned(pod: Pod, target: Target) -> bool:
    return pod.metadata.controller.name == target.name


def _is_in_group(pod: Pod, target: Target) -> bool:
    gang = gang_of(pod)
    return len(gang) == 3 and gang[2] == target.name
