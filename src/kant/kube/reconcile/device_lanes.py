"""Lanes: how many pods with equal claims to devices one node may get, which the core does not count.

The core packs pods onto a node until its CPU or memory are gone. Where free devices allow fewer, all others would be
refused there, and another state be built for each node. So each such pod is given a lane, and no node takes two pods of
one lane. A lane promises nothing: whether the pod may run there is still checked when it gets its place, and who waits
for long is given another lane.
"""

from __future__ import annotations

from time import monotonic

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.device_requests import DeviceRequests
from kant.kube.translate.device_claims import known_names

REDRAW = 10.0
"""Seconds after which a pod has had its lane in vain, and the state is built anew, unless that takes long."""


class DeviceLanes:
    """Lives as long as the filters; `begin` is called with each state."""

    def __init__(self, mirror: Mirror, requests: DeviceRequests) -> None:
        self.mirror, self.requests = mirror, requests
        self._drawn: dict[str, tuple[float, str]] = {}  # by uid, in the order in which they were given
        self._ranks: dict[str, int] = {}  # of the next pod of a kind
        self._sizes: dict[str, int] = {}
        self._claims: dict[str, dict[str, int]] = {}  # numbers of the claims of a kind, or sets of them

    def begin(self) -> None:
        """A state is built: all are given new ones."""
        for own in (self._drawn, self._ranks, self._sizes, self._claims):
            own.clear()

    def of(self, pod: Pod) -> str:
        """The lane of a pod that waits; "" where nothing is known of what limits it."""
        uid = pod.metadata.uid
        if uid not in self._drawn:
            if not (lane := self._draw(pod)):
                return ""
            self._drawn[uid] = monotonic(), lane
        return self._drawn[uid][1]

    def waited(self) -> float:
        """Seconds for which the first of those who still wait has had its lane."""
        for uid, (when, _) in list(self._drawn.items()):
            pod = self.mirror.pods.get(uid)
            if pod is not None and not pod.spec.node_name:
                return monotonic() - when
            del self._drawn[uid]
        return 0.0

    def _draw(self, pod: Pod) -> str:
        """As many lanes as such claims find devices at the node that has most of them, for each pod of a claim."""
        kind = f"devices {self.requests.digest(pod)}"
        if kind not in self._sizes:
            self._sizes[kind] = self.requests.most_at_one_node(pod)
        if not self._sizes[kind]:
            return ""
        own = f"{pod.metadata.namespace} {known_names(pod)}"
        claims = self._claims.setdefault(kind, {})
        number = claims.setdefault(own, len(claims))
        rank = self._ranks[own] = self._ranks.get(own, -1) + 1
        return f"{kind} {number % self._sizes[kind]} {rank}"
