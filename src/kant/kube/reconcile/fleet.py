"""The fleet: turns the nodes of the API server into nodes of the core's state, and their changes into events.

A node may join, leave, or change its size, position in the topology, labels and taints without a rebuild. The driver
rebuilds the state only for a new topology level, another way to share GPUs, more pools than a cluster may have, or a
node that becomes too small for its running pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kant.cluster import columns as c
from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.hami_devices import registered
from kant.live.core import Core
from kant.model.event import DevicesChanged, NodeChanged, NodeDescribed, NodesJoined, NodesLeft
from kant.model.node import MAX_POOLS, ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.units import GPU


def cluster_of(mirror: Mirror, translation: Translation, now: int) -> ClusterSpec | None:
    """Return the nodes in the mirror as a cluster, sorted by name; None if there is no node."""
    seen = (translation.nodes.node(mirror.nodes[key], now) for key in sorted(mirror.nodes))
    nodes = translation.nodes.leave_out_rare(tuple(one[0] for one in seen if one is not None))
    for node in nodes:
        translation.eligible.follow_facts(node.name)
    return ClusterSpec("kubernetes", nodes, grows=True) if nodes else None


class Fleet:
    """`closed` has the nodes of the state that are gone or accept no new pods; `stale`: the state must be rebuilt."""

    def __init__(self, core: Core, mirror: Mirror, translation: Translation) -> None:
        self.core = core
        self.mirror = mirror
        self.translation = translation
        self.closed: set[str] = set()
        self.overrun: dict[str, None] = {}  # nodes that have lost GPUs that jobs still hold
        self.stale = False
        self.others: dict[str, None] = {}  # nodes that have joined or changed
        self._gone: dict[str, None] = {}  # deleted nodes on which jobs still hold something

    def follow(self, names: Iterable[str]) -> None:
        """Emit events for the changes to these nodes."""
        now, nodes = self.core.now, self.mirror.nodes
        seen = {name: self.translation.nodes.node(nodes[name], now) if name in nodes else None for name in names}
        self.translation.stale |= self.translation.nodes.shares_anew
        self._take_in(seen)
        for name, one in seen.items():
            index = self.core.state.node_index.get(name)
            if name not in nodes:
                self._gone[name] = None
                self.translation.complaints.drop(f"node {name}")
            if index is not None:
                self.translation.eligible.follow_facts(name)
                self._follow(name, index, one)
        self.translation.eligible.report_sets(self.core)
        if self._gone:
            self._let_go()

    def _follow(self, name: str, index: int, seen: tuple[Node, NodeStatus, int, int] | None) -> None:
        """Emit events if a node of the state has lost or regained GPUs, or has begun or ceased to accept new pods."""
        if seen is None:  # gone or malformed: the jobs on it continue
            self._serve(index, name, NodeStatus.CORDONED, -1)
            return
        (_, status, until, lost), view = seen, self.mirror.nodes[name]
        sick = registered(view).unhealthy
        closed = status == NodeStatus.IN_SERVICE and self._is_held_in_part(index, sick)
        self._serve(index, name, NodeStatus.CORDONED if closed else status, until)
        self._count_devices(index, name, lost, sick)

    def _take_in(self, seen: Mapping[str, tuple[Node, NodeStatus, int, int] | None]) -> None:
        """Emit events for nodes that have joined or changed."""
        state = self.core.state
        named = {name: one[0] for name, one in seen.items() if one is not None}
        new = {name: node for name, node in named.items() if name not in state.node_index}
        other = [
            node for name, node in named.items() if name not in new and node != state.nodes[state.node_index[name]]
        ]
        if not new and not other:
            return
        pools = {*state.shapes.pool_keys, *(node.pool for node in (*new.values(), *other))}
        if (
            self.translation.stale
            or len(pools) > MAX_POOLS
            or not all(state.stays_on(node) for node in other)
            or self.translation.nodes.joins([self.mirror.nodes[node.name] for node in (*new.values(), *other)])
        ):
            self.stale = True
            return
        if new:
            self.core.happen(NodesJoined(self.core.now, tuple(new.values())))
        for node in other:
            self.core.happen(NodeDescribed(self.core.now, node))
        self.others |= dict.fromkeys((*new, *(node.name for node in other)))

    def _let_go(self) -> None:
        """Remove deleted nodes from the state once no job holds resources on them."""
        state, nodes = self.core.state, self.mirror.nodes
        self._gone = {name: None for name in self._gone if name not in nodes and name in state.node_index}
        leaving = tuple(name for name in self._gone if not state.is_in_use(name))
        if leaving:
            self.core.happen(NodesLeft(self.core.now, leaving))
        for name in leaving:
            del self._gone[name]
            self.closed.discard(name)
            self.translation.nodes.left_out.discard(name)
            self.translation.shares.forget(name)
            self.translation.eligible.topologies.leave(name)

    def _serve(self, index: int, name: str, status: NodeStatus, until: int) -> None:
        if self.core.state.table[index, c.STATUS] != status:
            self.core.happen(NodeChanged(self.core.now, name, status, until))
        (self.closed.discard if status == NodeStatus.IN_SERVICE else self.closed.add)(name)

    def _is_held_in_part(self, index: int, devices: int) -> bool:
        """Whether one of the GPUs in the bit mask `devices` is partly allocated: it cannot be marked as lost yet."""
        row = self.core.state.table[index].tolist() if devices else []
        return any(devices >> number & 1 and 0 < free < GPU for number, free in enumerate(row[c.DEVICES :]))

    def _count_devices(self, index: int, name: str, lost: int, named: int) -> None:
        """Mark `lost` GPUs of a node as unavailable: those in the bit mask `named`, then free GPUs, the last one first.

        A GPU that a job holds becomes lost when the job frees it.
        """
        state = self.core.state
        before = state.health.lost.get(index, 0)
        if before.bit_count() == lost and (not named or before == named):
            return
        own = state.table[index, c.DEVICES : c.DEVICES + state.nodes[index].gpus].tolist()
        mask = 0
        for device in reversed(range(len(own))):
            meant = not named or named.bit_count() < lost or (named >> device) & 1
            if meant and mask.bit_count() < lost and (own[device] == GPU or (before >> device) & 1):
                mask |= 1 << device
        if mask.bit_count() < lost:
            self.overrun[name] = None
        if mask != before:
            self.core.happen(DevicesChanged(self.core.now, name, mask))
