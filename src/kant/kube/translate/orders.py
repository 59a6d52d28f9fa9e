"""Orders of users for waiting pods: a hold, and another priority. They are annotations of the pods."""

from __future__ import annotations

from kant.kube.objects.names import HOLD, PRIORITY
from kant.kube.objects.validation import whole
from kant.kube.objects.views import Pod

LOW, HIGH = -(1 << 31), (1 << 31) - 1
"""Range of the priorities of pods, as in `spec.priority`."""


def is_held(pod: Pod) -> bool:
    """Whether a user holds the pod."""
    return (pod.metadata.annotations or {}).get(HOLD) == "true"


def priority_of(pod: Pod, where: str) -> int:
    """Return the priority that an order has set, else that of the PriorityClass. InputError if it is no number."""
    said = (pod.metadata.annotations or {}).get(PRIORITY)
    return whole(f"{where}, annotation {PRIORITY}", said, LOW, HIGH) if said else pod.spec.priority


def ordered(pod: Pod) -> tuple[str | None, ...]:
    """Return the pod's annotations HOLD and PRIORITY (None: absent). If one changes, its job is created again."""
    said = pod.metadata.annotations or {}
    return tuple(said.get(key) for key in (HOLD, PRIORITY))
