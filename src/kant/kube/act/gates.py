"""Our scheduling gate: while a pod has it nobody binds it, and autoscalers do not look at it."""

from __future__ import annotations

from kant.kube.act.effects import Effects
from kant.kube.objects.names import GATE
from kant.kube.objects.views import Pod


def our_gate(pod: Pod) -> int:
    """Where our gate stands among those of a pod; -1 where it has none."""
    return next((at for at, gate in enumerate(pod.spec.scheduling_gates) if gate.name == GATE), -1)


async def open_gate(effects: Effects, pod: Pod) -> None:
    """Take our gate from a pod. Raises ApiError, also where the gates are not as we saw them last."""
    meta, gate = pod.metadata, f"/spec/schedulingGates/{our_gate(pod)}"
    patch = [{"op": "test", "path": f"{gate}/name", "value": GATE}, {"op": "remove", "path": gate}]
    await effects.patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", patch, "json")
