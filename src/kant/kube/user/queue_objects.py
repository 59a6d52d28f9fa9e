"""Queues and priorities as objects for a cluster: what `kant export` makes of those of one machine."""

from __future__ import annotations

from typing import Any

from kant.kube.objects.names import OWN
from kant.kube.objects.quantity import text_of
from kant.model.tenant import Budget, Queue, QueueConfig, Quota

API = f"{OWN}/v1alpha1"


def queue_objects(queue_config: QueueConfig) -> list[dict[str, Any]]:
    """Return a Queue object for each queue. Prices of GPU models have no object."""
    return [_queue(queue) for queue in queue_config.queues]


def _queue(queue: Queue) -> dict[str, Any]:
    said = {
        "parent": queue.parent,
        "weight": queue.weight if queue.weight != 1 else None,
        "isolated": queue.isolated,
        "userQueues": queue.user_queues,
        "state": queue.state if queue.state != "open" else None,
        "minRun": f"{-(-queue.min_run // 1000)}ms" if queue.min_run else None,
        "nodeWait": f"{-(-queue.node_wait // 1000)}ms" if queue.node_wait else None,
        "maxTime": f"{-(-queue.max_time // 1000)}ms" if queue.max_time else None,
        "fallback": queue.fallback if queue.fallback != "listed" else None,
        "budget": _budget(queue.budget) if queue.budget is not None else None,
        "quotas": [_quota(quota) for quota in queue.quotas],
    }
    spec = {name: value for name, value in said.items() if value}
    return {"apiVersion": API, "kind": "Queue", "metadata": {"name": queue.name}, "spec": spec}


def _budget(budget: Budget) -> dict[str, str]:
    said = {"hard": budget.hard, "soft": budget.soft, "userHard": budget.user_hard, "userSoft": budget.user_soft}
    return {name: f"{value}m" for name, value in said.items() if value >= 0}


def _quota(quota: Quota) -> dict[str, Any]:
    made: dict[str, Any] = {"resource": quota.resource} | ({"model": quota.model} if quota.model else {})
    limits = {
        "nominal": quota.nominal,
        "borrowingLimit": quota.borrowing_limit,
        "lendingLimit": quota.lending_limit,
        "userLimit": quota.user_limit,
    }
    return made | {name: text_of(quota.resource, value) for name, value in limits.items() if value >= 0}


def class_of(priority: int) -> str:
    """Return the name of the PriorityClass of a number; "" for 0, which needs none."""
    return "" if not priority else f"kant-{'minus' if priority < 0 else 'plus'}-{abs(priority)}"


def priority_class(priority: int) -> dict[str, Any]:
    """Return the PriorityClass of a number."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": class_of(priority)},
        "value": priority,
        "description": f"Priority {priority} of a Kant on one machine.",
    }
