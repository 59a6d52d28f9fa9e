"""Device limits: how many pods with equal claims to devices one node may get, which the core counts as a class.

The core packs pods onto a node until its CPU or memory are gone. Where free devices allow fewer, all others would be
refused there, and another state be built for each node. A limit promises nothing: whether a pod may run there is still
checked when it gets its place. It is of when the state was built, so who waits for long has another state built.
"""

from __future__ import annotations

from time import monotonic

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.device_requests import DeviceRequests
from kant.kube.translate.device_claims import known_names
from kant.kube.translate.pod_rules import CLAIMED
from kant.model.rules import PodAntiAffinity

PATIENCE = 10.0
"""Seconds after which a limit may be too low, since others have given devices back."""


class DeviceLimits:
    """Lives as long as the filters; `begin` is called with each state."""

    def __init__(self, mirror: Mirror, requests: DeviceRequests) -> None:
        self.mirror, self.requests = mirror, requests
        self._since: dict[str, float] = {}  # by uid, in the order in which they were limited
        self._most: dict[str, int] = {}

    def begin(self) -> None:
        """A state is built."""
        self._since.clear()
        self._most.clear()

    def of(self, pod: Pod) -> PodAntiAffinity | None:
        """The class in which a pod that waits counts, and how many others of it a node may have; None for no limit.

        Of the pods that share a claim each is in a class of its own: they need one device together.
        """
        kind = self.requests.digest(pod)
        if kind not in self._most:
            self._most[kind] = self.requests.most_at_one_node(pod)
        if not self._most[kind]:
            return None
        self._since.setdefault(pod.metadata.uid, monotonic())
        users = (list(self.mirror.devices.users.get((pod.metadata.namespace, name), ())) for name in known_names(pod))
        rank = max([own.index(pod.metadata.uid) for own in users if pod.metadata.uid in own], default=0)
        return PodAntiAffinity(f"{CLAIMED}{kind} {rank}", most=self._most[kind] - 1)

    def waited(self) -> float:
        """Seconds for which the first of those who still wait has had its limit."""
        for uid, when in list(self._since.items()):
            pod = self.mirror.pods.get(uid)
            if pod is not None and not pod.spec.node_name:
                return monotonic() - when
            del self._since[uid]
        return 0.0
