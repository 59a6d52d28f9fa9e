"""Our scheduling gate: a pod that has it is not bound, and autoscalers ignore the pod."""

from __future__ import annotations

from kant.kube.act.effects import Effects
from kant.kube.objects.names import GATE, TEST_GATE
from kant.kube.objects.views import Pod


def our_gate(pod: Pod) -> int:
    """Return the index of our gate among those of a pod; -1 if it has none."""
    return next((at for at, gate in enumerate(pod.spec.scheduling_gates) if gate.name == GATE), -1)


async def open_gate(effects: Effects, pod: Pod) -> None:
    """Remove our gate from a pod. Raises ApiError, also if the gates have changed since they were last seen."""
    meta, gate = pod.metadata, f"/spec/schedulingGates/{our_gate(pod)}"
    patch = [{"op": "test", "path": f"{gate}/name", "value": GATE}, {"op": "remove", "path": gate}]
    await effects.patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", patch, "json")


def asks(pod: Pod) -> bool:
    """Whether a pod only asks when it would start (`lead/trials.py`)."""
    return any(gate.name == TEST_GATE for gate in pod.spec.scheduling_gates)
