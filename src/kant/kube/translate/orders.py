"""Orders of users for waiting pods, as annotations: a hold, and another priority."""

from __future__ import annotations

from kant.kube.objects.names import HOLD, PRIORITY
from kant.kube.objects.validation import whole
from kant.kube.objects.views import Pod

LOW, HIGH = -(1 << 31), (1 << 31) - 1
"""Range of the priorities of pods, as in `spec.priority`."""


def is_held(pod: Pod) -> bool:
    """Whether the pod is on hold."""
    return (pod.metadata.annotations or {}).get(HOLD) == "true"


def priority_of(pod: Pod, where: str) -> int:
    """Return the priority set by an order, or that of the PriorityClass. Raises InputError for what is not a number."""
    said = (pod.metadata.annotations or {}).get(PRIORITY)
    return whole(f"{where}, annotation {PRIORITY}", said, LOW, HIGH) if said else pod.spec.priority


def ordered(pod: Pod) -> tuple[str | None, ...]:
    """Return all orders, unparsed: if one changes, the job of the pod is re-created."""
    said = pod.metadata.annotations or {}
    return tuple(said.get(key) for key in (HOLD, PRIORITY))
