"""Dynamic resource allocation, for other modules. The modules that implement it are imported on first use.

The name is that of kube-scheduler's plugin DynamicResources. For pods without claims, and in clusters without devices,
this module itself answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Node, Pod
from kant.kube.translate.resources import Claimed
from kant.kube.translate.selectors import Term

if TYPE_CHECKING:
    from kant.kube.reconcile.device_allocations import DeviceAllocations
    from kant.kube.reconcile.device_requests import DeviceRequests

NO_GPUS = Claimed()


class DynamicResources:
    """Use `allocations` and `requests` only for clusters with devices and pods with claims."""

    def __init__(self, mirror: Mirror, scheduler: str = "kant") -> None:
        self.mirror = mirror
        self.scheduler = scheduler

    @cached_property
    def allocations(self) -> DeviceAllocations:
        """Which devices the claims of pods get; imported with the first device or claim."""
        from kant.kube.reconcile.device_allocations import DeviceAllocations

        return DeviceAllocations(self.mirror, self.scheduler)

    @property
    def requests(self) -> DeviceRequests:
        """What the claims of pods ask for."""
        return self.allocations.requests

    # --- states ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start over for a new state, in which no unbound pod is placed."""
        if self.mirror.has_devices:
            self.allocations.begin()

    def seek_elsewhere(self) -> None:
        """Look for the devices of shared claims on other nodes (`DeviceRequests.homes`), unless devices are planned."""
        if self.mirror.has_devices:
            self.allocations.seek_elsewhere()

    @property
    def has_other_homes(self) -> bool:
        """Whether shared devices could be sought on other nodes, if a gang does not fit on the present nodes."""
        return self.mirror.has_devices and self.requests.has_other_homes

    @property
    def has_exceeded_limits(self) -> bool:
        """Whether the CEL expressions of some namespace have exceeded the namespace's limit of CPU time."""
        return self.mirror.has_devices and self.requests.turned_away

    @property
    def may_have_more(self) -> bool:
        """Whether a pod has waited so long that its limit of pods per node may be too low by now (`DeviceLimits`)."""
        return self.mirror.has_devices and self.allocations.limits.are_old

    # --- nodes and pods -------------------------------------------------------------------------------------------

    def gpus_at(self, node: Node) -> int:
        """Return the number of GPUs of a node that claims can allocate."""
        return self.requests.gpus_at(node) if self.mirror.has_devices else 0

    def gpus(self, pod: Pod) -> Claimed:
        """Return the GPUs that a pod has or requests by claims. A shared claim counts only for its first pod."""
        return self.requests.gpus(pod) if pod.spec.resource_claims else NO_GPUS

    def uncounted(self, pod: Pod) -> str:
        """Return a claim of the pod whose GPUs cannot be counted; "" if there is none."""
        return self.requests.uncounted(pod) if pod.spec.resource_claims else ""

    def check(self, pod: Pod) -> None:
        """Raise NotYetError if a claim of the pod cannot be used yet, InputError if Kant cannot allocate it."""
        if pod.spec.resource_claims:
            self.allocations.check(pod)

    def are_made(self, pod: Pod) -> bool:
        """Whether all claims of the pod exist, so that its requests are known."""
        return not pod.spec.resource_claims or self.requests.are_made(pod)

    def are_one(self, pods: Sequence[Pod]) -> bool:
        """Whether several of these pods share an unallocated claim whose devices each belong to one node."""
        return any(pod.spec.resource_claims for pod in pods) and self.requests.are_one(pods)

    def demands(self, pod: Pod) -> list[tuple[Term, ...]]:
        """Return, for each claim that restricts a pod's nodes, alternative terms: a node must match one of these."""
        return self.requests.demands(pod) if pod.spec.resource_claims else []
