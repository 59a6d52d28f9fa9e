"""What people order of a pod that waits, by annotations on it: that it is held, and another priority."""

from __future__ import annotations

from kant.kube.objects.names import HOLD, PRIORITY
from kant.kube.objects.validation import whole
from kant.kube.objects.views import Pod

LOW, HIGH = -(1 << 31), (1 << 31) - 1
"""The priorities that a pod may have, as `spec.priority`."""


def is_held(pod: Pod) -> bool:
    """Whether somebody holds the pod."""
    return (pod.metadata.annotations or {}).get(HOLD) == "true"


def priority_of(pod: Pod, where: str) -> int:
    """The priority that was ordered, else that of its PriorityClass. Raises InputError for what is no number."""
    said = (pod.metadata.annotations or {}).get(PRIORITY)
    return whole(f"{where}, annotation {PRIORITY}", said, LOW, HIGH) if said else pod.spec.priority


def ordered(pod: Pod) -> tuple[str | None, ...]:
    """All that was ordered, as it stands there: another value makes the job of the pod come anew."""
    said = pod.metadata.annotations or {}
    return tuple(said.get(key) for key in (HOLD, PRIORITY))
