"""Kant's scheduling gate: a pod with this gate cannot be bound, and cluster autoscalers ignore it."""

from __future__ import annotations

from kant.kube.act.effects import Effects
from kant.kube.objects.names import GATE, TEST_GATE
from kant.kube.objects.views import Pod


def our_gate(pod: Pod) -> int:
    """Return the index of Kant's gate among a pod's scheduling gates; -1: the pod lacks it."""
    return next((at for at, gate in enumerate(pod.spec.scheduling_gates) if gate.name == GATE), -1)


async def open_gate(effects: Effects, pod: Pod) -> None:
    """Remove Kant's gate from a pod. Raises ApiError, also if the pod's gates have changed since `pod` was read."""
    meta, gate = pod.metadata, f"/spec/schedulingGates/{our_gate(pod)}"
    patch = [{"op": "test", "path": f"{gate}/name", "value": GATE}, {"op": "remove", "path": gate}]
    await effects.patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", patch, "json")


def asks(pod: Pod) -> bool:
    """Whether a pod is only a question when it would start (see `lead/trials.py`). Such a pod is never bound."""
    return any(gate.name == TEST_GATE for gate in pod.spec.scheduling_gates)
