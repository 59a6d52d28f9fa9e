"""Device limits: how many pods with equal claims one node has devices for, given to the core as a limit of a pod class.

The core packs pods onto a node until its CPU or memory is used up. If the free devices are enough for fewer pods, the
surplus pods would be refused, node by node, each after an evaluation of the filters. A limit may be too high: each pod
is still checked when it is placed. If a pod waits long, the filters, and thus the limits, are evaluated again.
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
"""Seconds of waiting after which a limit counts as too low, since devices may have been freed."""


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
        """Return the class of a waiting pod, and how many other pods of the class may be on its node; None: no limit.

        Each pod that shares a claim gets a class of its own, since these pods share the same devices.
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
        """Return for how many seconds the earliest of the limited pods that still wait has had its limit."""
        for uid, when in list(self.since.items()):
            pod = self.mirror.pods.get(uid)
            if pod is not None and not pod.spec.node_name:
                return monotonic() - when
            del self.since[uid]
        return 0.0
