"""API objects as tests write them: nodes with GPUs, pods of schedulerName kant, gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
GANG, GANG_MIN, GANG_INDEX = "test.kant.dev/gang", "test.kant.dev/gang-min", "test.kant.dev/gang-index"
"""Labels on every pod of `make_gang`, whatever convention says it to the scheduler: the auditor reads these."""
RUN_SECONDS = "test.kant.dev/run-seconds"
"""Annotation: how long the fake kubelet lets a pod run before it succeeds; without it, forever."""
CONVENTIONS = ("kant", "upstream", "none")


def make_node(
    name: str,
    gpus: int = 8,
    *,
    cpu: str = "96",
    memory: str = "1Ti",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Object] = (),
    unschedulable: bool = False,
    ready: bool = True,
) -> Object:
    """A node with a status, as the API server keeps it from a POST. A taint is {"key", "value", "effect"}."""
    room = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "1Ti"}
    if gpus:
        room[GPU] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})},
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "reason": "KubeletReady"}],
        },
    }


def make_pod(
    name: str,
    gpus: int = 1,
    *,
    namespace: str = "default",
    cpu: str = "1",
    memory: str = "1Gi",
    scheduler: str = "kant",
    run_s: float | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str = "",
    priority_class: str = "",
    **spec: Any,
) -> Object:
    """A pod of one container. `spec` goes into the pod's spec as it stands: nodeSelector={…}, tolerations=[…]."""
    requests = {"cpu": cpu, "memory": memory} | ({GPU: str(gpus)} if gpus else {})
    resources: Object = {"requests": requests} | ({"limits": {GPU: str(gpus)}} if gpus else {})
    notes = dict(annotations or {}) | ({RUN_SECONDS: str(run_s)} if run_s is not None else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {}), "annotations": notes},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "test", "resources": resources}],
            "terminationGracePeriodSeconds": 1,
            **({"nodeName": node} if node else {}),
            **({"priorityClassName": priority_class} if priority_class else {}),
            **spec,
        },
    }


def make_gang(
    name: str,
    size: int,
    gpus: int = 1,
    *,
    namespace: str = "default",
    least: int | None = None,
    convention: str = "kant",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **pod: Any,
) -> list[Object]:
    """`size` pods NAME-0…, of which at least `least` (all) must run at once; with "upstream" their PodGroup first.

    "kant": our own labels. "upstream": a PodGroup of scheduling.k8s.io/v1alpha2. "none": only the auditor's labels.
    """
    assert convention in CONVENTIONS, f"expected one of {CONVENTIONS}, not {convention!r}"
    least = size if least is None else least
    before: list[Object] = []
    ours: dict[str, str] = dict(labels or {}) | {GANG: name, GANG_MIN: str(least)}
    if convention == "kant":
        ours |= {"scheduling.kant.dev/pod-group": name, "scheduling.kant.dev/min-available": str(least)}
    if convention == "upstream":
        before.append(make_pod_group(name, least, namespace=namespace))
        pod["schedulingGroup"] = {"podGroupName": name}
    return before + [
        make_pod(
            f"{name}-{index}",
            gpus,
            namespace=namespace,
            labels=ours | {GANG_INDEX: str(index)},
            annotations=annotations,
            **pod,
        )
        for index in range(size)
    ]


def make_pod_group(name: str, least: int, *, namespace: str = "default") -> Object:
    """The upstream gang: all of `least` pods or none."""
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
    }


def make_priority_class(name: str, value: int, *, preempts: bool = True) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "PreemptLowerPriority" if preempts else "Never",
    }


def make_budget(name: str, selector: Mapping[str, str], least: int, *, namespace: str = "default") -> Object:
    """A PodDisruptionBudget. No controller fills its status here: `api.allow(name, allowed)` does."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": least, "selector": {"matchLabels": dict(selector)}},
    }
