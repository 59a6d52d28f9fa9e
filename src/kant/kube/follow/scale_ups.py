"""The latest report of node autoscalers on each pod, from their Events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kant.kube.translate.autoscaling import PodEvent, ScaleUp


@dataclass(slots=True)
class ScaleUps:
    """`of_pod` has the reports by the uid of the pod, `touched` the uids of pods whose report has changed."""

    of_pod: dict[str, ScaleUp] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)

    def event(self, kind: str, event: PodEvent) -> bool:
        """Record that an Event was added, modified or deleted. Returns False if the Event has no news about a pod."""
        from kant.kube.translate.autoscaling import scale_up_of  # imported with the first Event

        found, uid = scale_up_of(event), event.involved_object.uid
        if found is None or not uid:
            return False
        before = self.of_pod.get(uid)
        if before is not None and found.version < before.version:
            return False
        if kind == "deleted":  # Kubernetes deletes an Event an hour after the last report
            self.of_pod.pop(uid, None)
        else:
            self.of_pod[uid] = found
            if before is not None and before[1:] == found[1:]:
                return False
        self.touched[uid] = None
        return True

    def replace(self, events: Iterable[PodEvent]) -> None:
        """Record all Events of one autoscaler, as listed."""
        for event in events:
            self.event("modified", event)
