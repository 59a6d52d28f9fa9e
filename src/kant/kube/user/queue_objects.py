"""Queues and priorities as objects for a cluster: what `kant export` makes of those of one machine."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from kant.kube.objects.names import OWN
from kant.kube.objects.quantity import text_of
from kant.kube.translate.queues import BudgetSpec, QueueSpec, QuotaSpec
from kant.model.tenant import Budget, Queue, QueueConfig, Quota

API = f"{OWN}/v1alpha1"


def queue_objects(queue_config: QueueConfig) -> list[dict[str, Any]]:
    """Return a Queue object for each queue. Prices of GPU models have no object."""
    return [_queue(queue) for queue in queue_config.queues]


def _queue(queue: Queue) -> dict[str, Any]:
    spec = QueueSpec(
        queue.parent, queue.weight, queue.isolated, queue.state, _time(queue.min_run), _time(queue.node_wait),
        queue.user_queues, _time(queue.max_time), _budget(queue.budget) if queue.budget is not None else None,
        tuple(map(_quota, queue.quotas)), queue.fallback,
    )  # fmt: skip
    return {"apiVersion": API, "kind": "Queue", "metadata": {"name": queue.name}, "spec": to_builtins(spec)}


def _time(microseconds: int) -> str:
    return f"{-(-microseconds // 1000)}ms" if microseconds else ""


def _budget(budget: Budget) -> BudgetSpec:
    hours = (budget.hard, budget.soft, budget.user_hard, budget.user_soft)
    return BudgetSpec(*(f"{value}m" if value >= 0 else None for value in hours))


def _quota(quota: Quota) -> QuotaSpec:
    limits = (quota.borrowing_limit, quota.lending_limit, quota.user_limit)
    shown = (text_of(quota.resource, value) if value >= 0 else None for value in limits)
    return QuotaSpec(quota.resource, quota.model, text_of(quota.resource, quota.nominal), *shown)


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
