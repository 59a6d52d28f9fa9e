"""The fleet: the nodes of the API server as the nodes of a state, and what happens to them as events.

The nodes of a state are fixed. A node that is new, or has another size, place or pool than the state believes, makes
the state stale: the driver builds it anew. What else happens to a node is an event, its labels and taints too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kant.cluster import columns as c
from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.pod_capacity import PodCapacity
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.hami import registered
from kant.live.core import Core
from kant.model.event import DevicesChanged, NodeChanged
from kant.model.node import ClusterSpec
from kant.model.status import NodeStatus
from kant.model.units import GPU


def cluster_of(mirror: Mirror, translation: Translation, now: int, name: str = "kubernetes") -> ClusterSpec | None:
    """The nodes there are, in the order of their names; None where there are none."""
    seen = (translation.node(mirror.nodes[key], now) for key in sorted(mirror.nodes))
    nodes = translation.leave_out_rare(tuple(one[0] for one in seen if one is not None))
    for node in nodes:
        translation.follow_facts(node.name)
    return ClusterSpec(name, nodes) if nodes else None


class Fleet:
    """`closed` are the nodes of the state that are gone, or take nothing new; `stale`: they are not those there are."""

    def __init__(self, core: Core, mirror: Mirror, translation: Translation) -> None:
        self.core = core
        self.mirror = mirror
        self.translation = translation
        self.pod_capacity = PodCapacity(mirror)
        self.closed: set[str] = set()
        self.overrun: dict[str, None] = {}  # nodes that have lost GPUs which somebody holds
        self.stale = False

    def follow(self, names: Iterable[str]) -> None:
        """Say as events what has become of these nodes."""
        state = self.core.state
        for name in names:
            index, view = state.node_index.get(name), self.mirror.nodes.get(name)
            seen = self.translation.node(view, self.core.now) if view is not None else None
            if view is None:
                self.translation.mended(f"node {name}")
            if index is None or (seen is not None and seen[0] != state.spec.nodes[index]):  # it is new, or another
                self.stale = self.stale or seen is not None
                continue
            self.translation.follow_facts(name)
            if seen is None:  # gone, or not to be understood any more: what runs there runs on
                self._serve(index, name, NodeStatus.CORDONED, -1)
                continue
            _, status, until, lost = seen
            assert view is not None
            self.pod_capacity.limit(name, (view.status.allocatable or {}).get("pods"))
            sick = registered(view).unhealthy
            closed = status == NodeStatus.IN_SERVICE and self._is_held_in_part(index, sick)
            self._serve(index, name, NodeStatus.CORDONED if closed else status, until)
            self._count_devices(index, name, lost, sick)
        self.translation.tell_sets(self.core)

    def take_overrun(self) -> list[str]:
        """The nodes of `overrun`, once."""
        found, self.overrun = list(self.overrun), {}
        return found

    def count_pods(self, names: Iterable[str]) -> None:
        """Close nodes that have as many pods as they may, and open them again."""
        self.follow(self.pod_capacity.changed(names, self.core.clock()))

    def _serve(self, index: int, name: str, status: NodeStatus, until: int) -> None:
        full = status == NodeStatus.IN_SERVICE and name in self.pod_capacity.full
        shown = NodeStatus.CORDONED if full else status
        if self.core.state.table[index, c.STATUS] != shown:
            self.core.happen(NodeChanged(self.core.now, name, shown, until))
        (self.closed.discard if status == NodeStatus.IN_SERVICE else self.closed.add)(name)

    def _is_held_in_part(self, index: int, devices: int) -> bool:
        """Whether one of these GPUs, as bits, has something left beside what is held of it: it cannot be lost yet."""
        row = self.core.state.table[index].tolist()
        return any(devices >> number & 1 and 0 < free < GPU for number, free in enumerate(row[c.DEVICES :]))

    def _count_devices(self, index: int, name: str, lost: int, named: int) -> None:
        """So many of its GPUs are not to be had: those that are `named`, as bits, else those that are free.

        Those from the last on. What somebody holds is lost when it comes free.
        """
        state = self.core.state
        before = state.health.lost.get(index, 0)
        if before.bit_count() == lost and (not named or before == named):
            return
        own = state.table[index, c.DEVICES : c.DEVICES + state.spec.nodes[index].gpus].tolist()
        mask = 0
        for device in reversed(range(len(own))):
            meant = not named or named.bit_count() < lost or (named >> device) & 1
            if meant and mask.bit_count() < lost and (own[device] == GPU or (before >> device) & 1):
                mask |= 1 << device
        if mask.bit_count() < lost:
            self.overrun[name] = None
        if mask != before:
            self.core.happen(DevicesChanged(self.core.now, name, mask))
