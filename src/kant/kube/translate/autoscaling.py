"""What node autoscalers report on waiting pods: Events of the Cluster Autoscaler and of Karpenter.

Sources: cluster-autoscaler/processors/status/eventing_scale_up_processor.go and core/scaleup/orchestrator/
skippedreasons.go of kubernetes/autoscaler; pkg/controllers/provisioning/scheduling/events.go of Karpenter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kant.kube.objects.views import Meta, View

SOURCES = ("cluster-autoscaler", "karpenter", "eks-auto-mode/compute")
"""Components that the Events name as their source. The last one is Karpenter in EKS Auto Mode."""

PASSING = ("in backoff", "not ready for scale-up", "can be vertically scaled")
"""Phrases of the Cluster Autoscaler about node groups that it cannot enlarge now, but perhaps soon."""

MOST_SAID = 200  # maximum characters of a message that are quoted


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
    """The latest report on a pod. `comes`: a node is being added for it; False: none is; None: none for now."""

    version: int
    comes: bool | None
    said: str


def scale_up_of(event: PodEvent) -> ScaleUp | None:
    """Return what an Event says about a new node for its pod. None if the Event is about something else."""
    comes: bool | None
    match event.reason:
        case "TriggeredScaleUp":
            comes = True
        case "Nominated" if "nodeclaim/" in event.message:  # any other nomination is to an existing node
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
    """Return the worst report on a gang's pods, since each of them needs a node. None if there is no report."""
    return min(said, key=lambda one: (True if one.comes is None else 2 * one.comes, -one.version), default=None)


def sentence(one: ScaleUp) -> str:
    """Return a report as a sentence for users."""
    now = " now" if one.comes is None else ""
    return f"{'a node is being added' if one.comes else f'no node is added{now}'} for it ({one.said})"
