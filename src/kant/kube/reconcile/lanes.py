"""Lanes: how many pods of a kind one node may get, where the core does not count what limits them.

The core packs pods onto a node until its GPUs, CPU or memory are gone. Where free devices or spreading by host allow
fewer, all others would be refused there, and another state be built for each node. So each such pod is given a lane,
and no node takes two pods of one lane (anti-affinity). A lane promises nothing: whether the pod may run there is still
checked when it gets its place, and who waits for long is given another lane.
"""

from __future__ import annotations

from time import monotonic

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.companions import Companions
from kant.kube.reconcile.device_requests import DeviceRequests
from kant.kube.reconcile.lots import longest_wait
from kant.kube.translate.device_claims import known_names
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.neighbours import spreads_of
from kant.kube.translate.pods import whole_selection


class Lanes:
    """Lives as long as the filters; `begin` is called with each state."""

    def __init__(self, mirror: Mirror, companions: Companions, requests: DeviceRequests) -> None:
        self.mirror, self.companions, self.requests = mirror, companions, requests
        self._drawn: dict[str, tuple[float, str]] = {}  # by uid, in the order in which they were given
        self._ranks: dict[str, int] = {}  # of the next pod of a kind
        self._sizes: dict[str, int] = {}
        self._claims: dict[str, dict[str, int]] = {}  # numbers of the claims of a kind, or sets of them

    def begin(self) -> None:
        """A state is built: all are given new ones."""
        self._drawn.clear()
        self._ranks.clear()
        self._sizes.clear()
        self._claims.clear()

    def of(self, pod: Pod, is_short: bool) -> str:
        """The lane of a pod that waits; "" where nothing limits it, or nothing is known of that.

        `is_short`: pods with claims like its own were refused where the core saw a place.
        """
        uid = pod.metadata.uid
        if uid not in self._drawn:
            lane = self._by_host(pod) or (self._by_devices(pod) if is_short else "")
            if not lane:
                return ""
            self._drawn[uid] = monotonic(), lane
        return self._drawn[uid][1]

    def waited(self) -> float:
        """Seconds for which the first of those who still wait has had its lane."""
        return longest_wait(self._drawn, self.mirror)

    def _by_host(self, pod: Pod) -> str:
        """Spread by host: a lane takes as many pods as hosts may have another one, and the next lane begins."""
        spreads = [one for one in spreads_of(pod) if one.like.key == HOSTNAME and one.like.is_about(pod)]
        if len(spreads) != 1:
            return ""
        kind = f"spread {spreads[0]} {whole_selection(pod)}"
        if kind not in self._sizes:
            counts = self.companions.spread_over(spreads[0], pod)
            emptiest = min(counts.values(), default=0) if len(counts) >= spreads[0].least else 0
            self._sizes[kind] = sum(count - emptiest < spreads[0].skew for count in counts.values())
        return f"{kind} {self._rank(kind) // self._sizes[kind]}" if self._sizes[kind] else ""

    def _by_devices(self, pod: Pod) -> str:
        """As many lanes as such claims find devices at the node that has most of them, for each pod of a claim."""
        kind = f"devices {self.requests.digest(pod)}"
        if kind not in self._sizes:
            self._sizes[kind] = self.requests.most_at_one_node(pod)
        if not self._sizes[kind]:
            return ""
        own = f"{pod.metadata.namespace} {known_names(pod)}"
        claims = self._claims.setdefault(kind, {})
        number = claims.setdefault(own, len(claims))
        return f"{kind} {number % self._sizes[kind]} {self._rank(f'{kind} {own}')}"

    def _rank(self, kind: str) -> int:
        rank = self._ranks[kind] = self._ranks.get(kind, -1) + 1
        return rank
