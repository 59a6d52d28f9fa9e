"""What happens to nodes, and what comes free on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.cluster import columns as c
from kant.model import event as ev
from kant.model.errors import Violation
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus
from kant.model.units import GPU

if TYPE_CHECKING:
    from kant.cluster.state import ClusterState


def node_changed(state: ClusterState, event: ev.NodeChanged) -> None:
    node = node_of(state, event.node)
    if event.status not in list(NodeStatus):
        raise Violation(f"{event.status} is no status of a node")
    if event.until >= 0 and event.status != NodeStatus.DRAINING:
        raise Violation(f"node {event.node!r} has a time by which it is drained, and is not draining")
    state.health.status_changed(node, event.status, event.until)
    c.set_status(state.table, state.log, state.pools, node, event.status)
    served(state, node, event.time, event.status == NodeStatus.IN_SERVICE)


def devices_changed(state: ClusterState, event: ev.DevicesChanged) -> None:
    node = node_of(state, event.node)
    devices, before = state.spec.nodes[node].gpus, state.health.lost.get(node, 0)
    if event.lost < 0 or event.lost >> devices:
        raise Violation(f"node {event.node!r} has {devices} GPUs and cannot lose those of the bits {event.lost}")
    own = state.table[node, c.DEVICES : c.DEVICES + devices].tolist()
    for device, free in enumerate(own):
        if (event.lost >> device) & 1 and 0 <= free < GPU:
            raise Violation(f"GPU {device} of node {event.node!r} is lost while a job holds it")
    state.health.devices_changed(node, event.lost)
    c.set_lost(state.table, state.log, state.pools, node, devices, event.lost)
    served(state, node, event.time, before & ~event.lost != 0)


def node_of(state: ClusterState, name: str) -> int:
    node = state.node_index.get(name)
    if node is None:
        raise Violation(f"there is no node {name!r}")
    return node


def served(state: ClusterState, node: int, now: int, opens: bool) -> None:
    """What the node has to offer has changed; it `opens` where that may be more than before."""
    state.services += 1
    for rivals in state.rivals.values():
        if (rivals.pools >> int(state.table[node, c.POOL])) & 1:
            rivals.stirred = now
    if opens:
        state.freed[state.table[node, c.POOL]] += 1
        state.openings += 1


def blamed_for(state: ClusterState, job: str, name: str) -> tuple[int, Allocation] | None:
    """The node that a running job has suffered from, and all that it holds; None where it was no node's fault."""
    if not name:
        return None
    node, held = node_of(state, name), state.running.get(state.row_of(job))
    if held is None or not (held[:, NODE] == node).any():
        raise Violation(f"job {job!r} does not run on node {name!r}")
    return node, held


def opened(state: ClusterState, pools: int) -> None:
    """Capacity came free in these pools, as bits."""
    state.openings += 1
    freed = state.freed
    for pool in range(pools.bit_length()):
        if (pools >> pool) & 1:
            freed[pool] += 1
