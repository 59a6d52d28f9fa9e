"""Lots: to which of a few domains a pod goes that must be spread over them (DoNotSchedule).

The core fills one domain before the next, where such pods are refused after the first few. So each is given a domain,
the emptiest one that takes it and has room, as if it selected it by its label. A lot promises nothing: whether the pod
may run there is still checked when it gets its place, and who waits for long draws another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from time import monotonic
from typing import Any

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod, Requirement
from kant.kube.reconcile.companions import Companions
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.neighbours import Spread, spreads_of
from kant.kube.translate.node_facts import admits
from kant.kube.translate.nodes import status_of
from kant.kube.translate.pods import whole_selection
from kant.kube.translate.resources import used_of
from kant.kube.translate.selectors import Selection
from kant.model.errors import InputError
from kant.model.job import Demand
from kant.model.status import NodeStatus

MOST = 16
"""Domains of a label beyond which there are no lots: they would make as many kinds of nodes."""

REDRAW = 10.0
"""Seconds after which a pod has had its lot in vain, and the state is built anew, unless that takes long."""

Takes = Callable[[str, Pod], bool]
"""Whether a node has room for a pod, which fails no filter there but for its spreading."""

Kind = Callable[[Pod], Hashable]
"""Equal for pods that fail the same filters."""


class Lots:
    """Lives as long as the filters; `begin` is called with each state."""

    def __init__(self, mirror: Mirror, companions: Companions, takes: Takes, kind: Kind) -> None:
        self.mirror, self.companions, self.takes, self.kind = mirror, companions, takes, kind
        self._drawn: dict[str, tuple[float, Requirement | None]] = {}  # by uid, in the order of the draws
        self._counts: dict[tuple[Spread, Selection], Counter[str]] = {}
        self._roomy: dict[tuple[Spread, Selection, Demand, Hashable], list[str]] = {}
        self._before: dict[str, tuple[float, Requirement | None]] = {}  # what was drawn in the last state, not long ago
        self._tried: dict[str, frozenset[str]] = {}  # by uid, the domains that it has had in vain

    def begin(self, waiting: Iterable[Pod]) -> None:
        """All draw again, in the order in which they came."""
        drawn, now = self._drawn, monotonic()
        tried = {uid: own for uid, own in self._tried.items() if uid in self._drawn}
        self._before, self._drawn = {}, {}
        for uid, (when, lot) in drawn.items():
            if lot is not None and now - when >= REDRAW:
                tried[uid] = tried.get(uid, frozenset()) | {*lot.values}
            elif lot is not None:
                self._before[uid] = when, lot
        self._tried = tried
        self._counts.clear()
        self._roomy.clear()
        for pod in sorted(waiting, key=lambda pod: pod.metadata.creation_timestamp or ""):
            self.of(pod)

    def of(self, pod: Pod) -> Requirement | None:
        """What the pod has to select beside what it says; None where it is not spread, or over too many domains."""
        if not pod.spec.topology_spread_constraints:
            return None
        uid = pod.metadata.uid
        if uid not in self._drawn:
            lot, before = self._draw(pod), self._before.get(uid)
            self._drawn[uid] = before if before is not None and before[1] == lot else (monotonic(), lot)
        return self._drawn[uid][1]

    def waited(self) -> float:
        """Seconds since the first draw of those who still wait with a lot."""
        return longest_wait(self._drawn, self.mirror)

    def _draw(self, pod: Pod) -> Requirement | None:
        spreads = spreads_of(pod)
        if len(spreads) != 1 or spreads[0].like.key == HOSTNAME or not spreads[0].like.is_about(pod):
            return None
        try:
            spread, wishes, size = spreads[0], whole_selection(pod, self.mirror.storage), used_of(pod.spec)
        except InputError:  # which the pod is told when it comes to the queue
            return None
        counts = self._counts.get((spread, wishes))
        if counts is None:
            counts = self._counts[spread, wishes] = self.companions.spread_over(spread, pod)
        if not 1 < len(counts) <= MOST:
            return None
        key = spread, wishes, size, self.kind(pod)
        roomy = self._roomy.get(key)
        if roomy is None:
            roomy = self._roomy[key] = self._with_room(spread, pod, wishes)
        tried = self._tried.get(pod.metadata.uid, frozenset())
        if tried.issuperset(roomy):  # it has had them all, and begins again
            self._tried.pop(pod.metadata.uid, None)
        else:
            roomy = [domain for domain in roomy if domain not in tried]
        emptiest = min(counts.values()) if len(counts) >= spread.least else 0
        domain = min(roomy, key=lambda name: (counts[name], name), default="")
        if not domain or counts[domain] + 1 - emptiest > spread.skew:
            return None
        counts[domain] += 1
        return Requirement(spread.like.key, "In", (domain,))

    def _with_room(self, spread: Spread, pod: Pod, wishes: Selection) -> list[str]:
        found: dict[str, None] = {}
        for node, domain in self.companions.eligible(spread, pod).items():
            if domain in found:
                continue
            view = self.mirror.nodes[node]
            serves = status_of(view) == NodeStatus.IN_SERVICE and admits(wishes, view)
            if serves and self.takes(node, pod):
                found[domain] = None
        return list(found)


def longest_wait(drawn: dict[str, tuple[float, Any]], mirror: Mirror) -> float:
    """Seconds since the first of these draws, by uid, whose pod waits; those of pods that have nodes are dropped."""
    for uid, (when, lot) in list(drawn.items()):
        pod = mirror.pods.get(uid)
        if lot is not None and pod is not None and not pod.spec.node_name:
            return monotonic() - when
        if pod is None or pod.spec.node_name:
            del drawn[uid]
    return 0.0
