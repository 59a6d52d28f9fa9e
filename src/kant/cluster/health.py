"""ClusterHealth: the failures of nodes, and the jobs that they affected."""

from __future__ import annotations

from collections.abc import Sequence, Set

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.model.errors import StateError
from kant.model.node import Node
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus

REMEMBERED = 8
"""The most bad nodes that are kept for a job, the latest ones."""


class ClusterHealth:
    """The unhealthy nodes of one cluster, by index, and the jobs that they affected, by row.

    `lost` has the missing devices of a node, as bits; `drains` the time by which a draining node must be empty, if
    given. `bad` has the nodes on which each live job has failed, the latest last. `broken` has what a waiting job held
    when one of its nodes failed, until the job starts again. `faults` counts failures of nodes and losses of devices,
    `evictions` the stops of jobs by these faults.
    """

    def __init__(self) -> None:
        self.lost: dict[int, int] = {}
        self.drains: dict[int, int] = {}
        self.bad: dict[int, tuple[int, ...]] = {}
        self.broken: dict[int, Allocation] = {}
        self.faults = self.evictions = 0
        self._failed: set[int] = set()

    def status_changed(self, node: int, status: int, until: int) -> None:
        """Record the status of a node; a draining one must be empty at `until` (-1: no time given)."""
        if status == NodeStatus.FAILED and node not in self._failed:
            self._failed.add(node)
            self.faults += 1
        elif status != NodeStatus.FAILED:
            self._failed.discard(node)
        self.drains.pop(node, None)
        if until >= 0:
            self.drains[node] = until

    def devices_changed(self, node: int, lost: int) -> None:
        """Set the devices that a node has lost (`lost`, as bits)."""
        if lost & ~self.lost.pop(node, 0):
            self.faults += 1
        if lost:
            self.lost[node] = lost

    def left(self, node: int) -> None:
        """Forget a node that has left."""
        self.lost.pop(node, None)
        self.drains.pop(node, None)
        self._failed.discard(node)

    def replaced(self, node: int) -> None:
        """Forget the history of a row that now has another node: no job failed or held anything on the new node."""
        for row, nodes in list(self.bad.items()):
            self.bad[row] = tuple(other for other in nodes if other != node)
        for row, held in list(self.broken.items()):
            if (held[:, NODE] == node).any():
                self.broken[row] = held[held[:, NODE] != node]
                if not len(self.broken[row]):
                    del self.broken[row]

    def keep_devices(self, node: int, devices: int) -> int:
        """Set the number of devices of a node; return those that it lacks, as bits."""
        lost = self.lost.pop(node, 0) & ((1 << devices) - 1)
        if lost:
            self.lost[node] = lost
        return lost

    def blame(self, row: int, node: int) -> None:
        """Record that a job has failed on a node."""
        before = (other for other in self.bad.get(row, ()) if other != node)
        self.bad[row] = (*before, node)[-REMEMBERED:]

    def forget(self, row: int) -> None:
        """Forget a job that leaves for good."""
        self.bad.pop(row, None)
        self.broken.pop(row, None)

    def check(self, table: Table, nodes: Sequence[Node], live: Set[int], pending: Set[int]) -> None:
        """Raise StateError unless these records match the node table, and the jobs in them exist."""
        slots = table[:, c.DEVICES : c.DEVICES + c.devices_of(table)] < 0
        missing = {
            node: sum(1 << device for device in range(spec.gpus) if slots[node, device])
            for node, spec in enumerate(nodes)
            if table[node, c.STATUS] != NodeStatus.RETIRED and slots[node, : spec.gpus].any()
        }
        if missing != self.lost:
            raise StateError("violated invariant: the lost devices are those that the nodes lack")
        if any(table[node, c.STATUS] != NodeStatus.DRAINING for node in self.drains):
            raise StateError("violated invariant: only a draining node has a time by which it is empty")
        if self._failed != set((table[:, c.STATUS] == NodeStatus.FAILED).nonzero()[0].tolist()):
            raise StateError("violated invariant: failed nodes are those with this status")
        if not self.bad.keys() <= live or not self.broken.keys() <= pending:
            raise StateError("violated invariant: bad nodes are those of live jobs, and broken jobs wait")
        if any(len(nodes) > REMEMBERED or len(set(nodes)) < len(nodes) for nodes in self.bad.values()):
            raise StateError(f"violated invariant: a job remembers at most {REMEMBERED} bad nodes, each once")
