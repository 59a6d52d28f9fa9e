"""Device limits: how many pods with equal claims one node can serve with devices, as a class that the core counts.

The core packs pods onto a node until its CPU or memory is used up. If free devices allow fewer pods, the excess pods
would be refused there, and each node would cost a rebuild of the state. A limit may be too high: each pod is still
checked when it gets its place. Limits date from the build of the state, so a long wait causes a rebuild of the state.
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
"""Seconds after which a limit may be too low, since devices may have been freed."""


class DeviceLimits:
    """Lives as long as the filters; `begin` is called with each state, and when the filters are evaluated again."""

    def __init__(self, mirror: Mirror, requests: DeviceRequests) -> None:
        self.mirror, self.requests = mirror, requests
        self.since: dict[str, float] = {}  # by pod uid, in the order in which pods were limited
        self._most: dict[str, int] = {}

    def begin(self) -> None:
        """Forget all limits."""
        self.since.clear()
        self._most.clear()

    def of(self, pod: Pod) -> PodAntiAffinity | None:
        """Return the class of a waiting pod, with the most other pods of the class per node; None for no limit.

        Pods that share a claim each get a class of their own, since they share one device.
        """
        kind = self.requests.digest(pod)
        if kind not in self._most:
            self._most[kind] = self.requests.most_at_one_node(pod)
        if not self._most[kind]:
            return None
        self.since.setdefault(pod.metadata.uid, monotonic())
        users = (list(self.mirror.devices.users.get((pod.metadata.namespace, name), ())) for name in known_names(pod))
        rank = max([own.index(pod.metadata.uid) for own in users if pod.metadata.uid in own], default=0)
        return PodAntiAffinity(f"{CLAIMED}{kind} {rank}", most=self._most[kind] - 1)

    @property
    def are_old(self) -> bool:
        """Whether some pod has waited so long that its limit may be too low by now."""
        return bool(self.since) and self.waited() > PATIENCE

    def waited(self) -> float:
        """Return for how many seconds the first pod that still waits has been limited."""
        for uid, when in list(self.since.items()):
            pod = self.mirror.pods.get(uid)
            if pod is not None and not pod.spec.node_name:
                return monotonic() - when
            del self.since[uid]
        return 0.0
