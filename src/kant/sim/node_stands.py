"""Track the health of a cluster's nodes from event to event, for a run that must have the faults of a journal."""

from __future__ import annotations

from collections.abc import Sequence

from kant.model.event import DevicesChanged, Event, NodeChanged, NodeDescribed, NodesJoined, NodesLeft
from kant.model.node import ClusterSpec
from kant.model.status import NodeStatus
from kant.workload.faults_file import NodeHealth

NODE_EVENTS = NodeChanged | DevicesChanged | NodesJoined | NodesLeft | NodeDescribed


class NodeStands:
    """Tracks the nodes of a cluster by row. `stands` has their initial health; by default all are healthy.

    Nodes that join or change may get other rows in other runs. So once the nodes are no longer those of the cluster,
    changes are reported by name: `by_name`.
    """

    def __init__(self, cluster: ClusterSpec, stands: Sequence[NodeHealth] = ()) -> None:
        self._nodes = cluster.nodes
        self._row = {node.name: row for row, node in enumerate(cluster.nodes)}
        self._stands = list(stands) or [NodeHealth(0, row, NodeStatus.IN_SERVICE) for row in self._row.values()]
        self.by_name = False

    def after(self, event: Event) -> list[NodeHealth]:
        """Return the new health of the nodes that an event concerns."""
        if isinstance(event, NodeDescribed) or (
            isinstance(event, NodesJoined)
            and any(node.name not in self._row or self._nodes[self._row[node.name]] != node for node in event.nodes)
        ):
            self.by_name = True
        if self.by_name or not isinstance(event, NODE_EVENTS):
            return []
        rows = [self._row[name] for name in names_of(event)]
        for row in rows:
            self._stands[row] = _after(self._stands[row], event)
        return [self._stands[row] for row in rows]


def names_of(event: NODE_EVENTS) -> list[str]:
    """Return the names of the nodes that an event concerns."""
    if isinstance(event, NodesJoined):
        return [node.name for node in event.nodes]
    if isinstance(event, NodesLeft):
        return list(event.nodes)
    return [event.node.name if isinstance(event, NodeDescribed) else event.node]


def _after(stood: NodeHealth, event: Event) -> NodeHealth:
    if isinstance(event, NodeChanged):
        return stood._replace(time=event.time, status=NodeStatus(event.status), until=event.until)
    if isinstance(event, DevicesChanged):
        return stood._replace(time=event.time, lost=event.lost)
    status = NodeStatus.RETIRED if isinstance(event, NodesLeft) else NodeStatus.IN_SERVICE
    return NodeHealth(event.time, stood.node, status)
