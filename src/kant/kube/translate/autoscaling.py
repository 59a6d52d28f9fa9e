"""What node autoscalers say of pods that wait: Events of the Cluster Autoscaler and of Karpenter.

Sources: cluster-autoscaler/processors/status/eventing_scale_up_processor.go and core/scaleup/orchestrator/
skippedreasons.go of kubernetes/autoscaler; pkg/controllers/provisioning/scheduling/events.go of Karpenter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kant.kube.objects.views import Meta, View

SOURCES = ("cluster-autoscaler", "karpenter", "eks-auto-mode/compute")
"""Who they say they are; the last is Karpenter in EKS Auto Mode."""

PASSING = ("in backoff", "not ready for scale-up", "can be vertically scaled")
"""Words of the Cluster Autoscaler about groups of nodes that it does not enlarge now, but may soon."""

MOST_SAID = 200  # letters of a message that are repeated


class _Regarding(View, frozen=True):
    uid: str = ""


class _Source(View, frozen=True):
    component: str = ""


class PodEvent(View, frozen=True):
    """An Event (`v1`) about a pod."""

    metadata: Meta = Meta()
    involved_object: _Regarding = _Regarding()
    reason: str = ""
    message: str = ""
    source: _Source = _Source()
    reporting_component: str = ""


class ScaleUp(NamedTuple):
    """What was said last of a pod. `comes`: a node is being added for it; False: none is; None: none for now."""

    version: int
    comes: bool | None
    said: str


def scale_up_of(event: PodEvent) -> ScaleUp | None:
    """What an Event says of a node for its pod; None where it speaks of something else."""
    comes: bool | None
    match event.reason:
        case "TriggeredScaleUp":
            comes = True
        case "Nominated" if "nodeclaim/" in event.message:  # else to a node that is there
            comes = True
        case "NotTriggerScaleUp":
            comes = None if any(word in event.message for word in PASSING) else False
        case "FailedScheduling" if event.message.startswith("Failed to schedule pod"):
            comes = False
        case _:
            return None
    version = event.metadata.resource_version
    said = " ".join(event.message.removeprefix("(combined from similar events): ").split())[:MOST_SAID]
    who = event.source.component or event.reporting_component
    return ScaleUp(int(version) if version.isdigit() else 0, comes, f"{who}: {said}")


def of_gang(said: Collection[ScaleUp]) -> ScaleUp | None:
    """What was said of all pods of a gang together: it needs a node for each of them. None where nothing was."""
    return min(said, key=lambda one: (True if one.comes is None else 2 * one.comes, -one.version), default=None)


def sentence(one: ScaleUp) -> str:
    """For people."""
    now = " now" if one.comes is None else ""
    return f"{'a node is being added' if one.comes else f'no node is added{now}'} for it ({one.said})"
