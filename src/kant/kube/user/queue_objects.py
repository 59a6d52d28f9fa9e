"""Queues and priorities of a single machine as Kubernetes objects, for `kant export`."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from kant.kube.objects.names import OWN
from kant.kube.objects.quantity import text_of
from kant.kube.translate.queues import AMOUNTS, TIMES, written_name
from kant.model.tenant import Queue, QueueConfig, Quota

API = f"{OWN}/v1alpha1"


def queue_objects(queue_config: QueueConfig) -> list[dict[str, Any]]:
    """Return a Queue object for each queue. The prices of GPU models are left out, since Queue objects have none."""
    return [_queue(queue) for queue in queue_config.queues]


def _queue(queue: Queue) -> dict[str, Any]:
    spec = to_builtins(queue)
    spec |= {field: f"{-(-spec[field] // 1000)}ms" for field in TIMES if field in spec}
    if queue.budget is not None:
        spec["budget"] = _written({field: f"{value}m" for field, value in spec["budget"].items()})
    if queue.quotas:
        spec["quotas"] = [_quota(quota) for quota in queue.quotas]
    return {"apiVersion": API, "kind": "Queue", "metadata": {"name": spec.pop("name")}, "spec": _written(spec)}


def _quota(quota: Quota) -> dict[str, Any]:
    said = {"nominal": 0} | to_builtins(quota)
    return _written(said | {field: text_of(quota.resource, said[field]) for field in AMOUNTS & said.keys()})


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    return {written_name(field): value for field, value in fields.items()}


def class_of(priority: int) -> str:
    """Return the name of the PriorityClass for a priority; "" for 0, which needs no PriorityClass."""
    return "" if not priority else f"kant-{'minus' if priority < 0 else 'plus'}-{abs(priority)}"


def priority_class(priority: int) -> dict[str, Any]:
    """Return the PriorityClass object for a priority other than 0."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": class_of(priority)},
        "value": priority,
        "description": f"Priority {priority} of Kant on one machine.",
    }
