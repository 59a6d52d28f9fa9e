"""Pods that are resized in place count with the larger of their present and their requested amounts.

A request may change while a pod runs (KEP-1287), and the kubelet takes time to apply the change. Until then the node
needs capacity for both amounts. The mirror gives such a pod the larger amounts as its requests, so that no other code
deals with resizes. Source: k8s.io/component-helpers, resource/helpers.go (PodRequests with UseStatusResources).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.objects.quantity import Quantity, exact
from kant.model.errors import InputError

Amounts = Mapping[str, Quantity] | None


def as_counted(pod: k.Pod) -> k.Pod:
    """Return the pod with the amounts that its node must provide as requests. The amounts in its status are removed."""
    status = pod.status
    if not (status.container_statuses or status.init_container_statuses or status.resources):
        return pod
    bare = replace(status, container_statuses=(), init_container_statuses=(), resources=None, allocated_resources=None)
    spec, refused = pod.spec, _is_refused(pod)
    containers = _all(spec.containers, status.container_statuses, refused)
    starting = _all(spec.init_containers, status.init_container_statuses, refused)
    whole = spec.resources and _of(spec.resources, status.resources, status.allocated_resources, refused)
    if (containers, starting, whole) == (spec.containers, spec.init_containers, spec.resources):
        return replace(pod, status=bare)
    spec = replace(spec, containers=containers, init_containers=starting, resources=whole)
    return replace(pod, spec=spec, status=bare)


def is_resized(before: k.PodSpec, after: k.PodSpec) -> bool:
    """Whether a pod requests other amounts than before."""
    return (before.containers, before.init_containers, before.resources) != (
        after.containers,
        after.init_containers,
        after.resources,
    )


def _is_refused(pod: k.Pod) -> bool:
    """Whether the kubelet has reported that the node can never provide what the pod requests now."""
    return any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in pod.status.conditions)


def _all(
    containers: tuple[k.Container, ...], statuses: tuple[k.ContainerStatus, ...], refused: bool
) -> tuple[k.Container, ...]:
    known = {one.name: one for one in statuses if one.resources is not None}
    found = []
    for one in containers:
        said = known.get(one.name)
        own = _of(one.resources, said.resources, said.allocated_resources, refused) if said else one.resources
        found.append(one if own is one.resources else replace(one, resources=own))
    return tuple(found)


def _of(asked: k.Resources, has: k.Resources | None, granted: Amounts, refused: bool) -> k.Resources:
    """Return the amounts that count: the largest of the requested, present and granted amounts."""
    if has is None or (has.requests in (None, asked.requests) and granted in (None, asked.requests)):
        return asked
    try:
        most: dict[str, Quantity] = {}
        for amounts in (None if refused else asked.requests, has.requests, granted):
            for name, value in (amounts or {}).items():
                if name not in most or exact(value, name) > exact(most[name], name):
                    most[name] = value
    except InputError:  # reported when the pod is counted
        return asked
    return asked if most == asked.requests else replace(asked, requests=most)
