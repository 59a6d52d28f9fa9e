"""Shares: what each queue holds during one cycle, and its path in the quota tree."""

from __future__ import annotations

from kant.cluster.columns import CPU, GPUS, MEMORY, P_CAPACITY, STATUS
from kant.cluster.quota_usage import Held
from kant.cluster.state import ClusterState
from kant.model.errors import StateError
from kant.model.status import NodeStatus
from kant.model.tenant import RESOURCES
from kant.model.units import FOREVER
from kant.queueing.admission import Admission

PARTS: tuple[str, ...] = RESOURCES


class Shares:
    """A copy of what queues hold, updated by the current plan. Made once a cycle, for orders that rank queues by share.

    What a queue holds also counts for its ancestors, so siblings can be compared on every level. The own jobs of a
    queue with children count as one more child, with weight 1; a queue outside the tree counts as one more root.
    """

    def __init__(self, state: ClusterState, now: int, admission: Admission) -> None:
        self.state = state
        self.now = now
        self.admission = admission
        self.quota_usage = state.quota_usage
        self.capacity = _capacity(state)
        self.held: dict[int, list[int]] = {}  # what each node of a path holds: GPUs, CPU, memory
        self._paths: dict[int, tuple[int, ...]] = {}
        self._of_keys: list[int] = []
        self._used: dict[int, dict[int, int]] = {}  # by half life, then by path node
        for queue, held in enumerate(self.quota_usage.held):
            self.add(queue, (held[0], held[1], held[2]), 1)

    def path(self, queue: int) -> tuple[int, ...]:
        """Return the tree nodes from the root to `queue`; a negative number is the node for its own jobs alone."""
        path = self._paths.get(queue)
        if path is None:
            tree, node = self.quota_usage.tree, self.quota_usage.node_of[queue]
            path = () if tree is None or node < 0 else tree.paths[node][::-1]
            if tree is None or node < 0 or not tree.is_leaf[node]:
                path = (*path, -1 - queue)
            self._paths[queue] = path
        return path

    def weight(self, node: int) -> int:
        """Return the weight of a node of a path (`path`) among its siblings."""
        return self.quota_usage.tree.weight(node) if self.quota_usage.tree is not None and node >= 0 else 1

    def add(self, queue: int, held: Held, sign: int) -> None:
        """Count a job of `queue` that starts (`sign` 1) or stops (-1) in this plan."""
        for node in self.path(queue):
            own = self.held.setdefault(node, [0, 0, 0])
            for i in range(3):
                own[i] += sign * held[i]

    def dominant(self, node: int) -> float:
        """Return the largest share of any one resource of the cluster that a node of a path holds."""
        held = self.held.get(node, [0, 0, 0])
        return max(h / capacity for h, capacity in zip(held, self.capacity, strict=True) if capacity > 0)

    def beyond_nominal(self, node: int) -> float:
        """Return the `dominant` share of what the node holds beyond its nominal quota; of all, if it has no quota."""
        tree = self.quota_usage.tree
        if tree is None or node < 0:
            return self.dominant(node)
        tree = self.admission.quota_tree
        if not self._of_keys:
            self._of_keys = [max(self._capacity_of(*key), 1) for key in tree.keys]
        return max((tree.borrowed(node, key) / of_all for key, of_all in enumerate(self._of_keys)), default=0.0)

    def _capacity_of(self, model: str, resource: str) -> int:
        """Return the capacity of one resource, on the nodes of one GPU model or of all."""
        if resource != "gpu":
            return self.capacity[PARTS.index(resource)]
        pools = self.state.shapes.pools_admitting((model,) if model else ())
        return sum(int(row[P_CAPACITY]) for pool, row in enumerate(self.state.pools) if pools >> pool & 1)

    def used(self, node: int, half_life: int) -> int:
        """Return the milli-GPU-seconds that a node of a path has used, halved for every half life of age."""
        used = self._used.get(half_life)
        if used is None:
            used = self._used[half_life] = {}
            hours = self.quota_usage.hours
            if hours is None:
                raise StateError("the state was created without the past use of queues (`usage_hours`)")
            for queue, amount in enumerate(hours.decayed(self.now, half_life).tolist()):
                for above in self.path(queue):
                    used[above] = used.get(above, 0) + amount
        return used.get(node, 0)


def _capacity(state: ClusterState) -> Held:
    """Return the milli-GPUs in service (at least 1), and the CPU and memory of GPU nodes where these are limited."""
    nodes = state.table[state.table[:, STATUS] != NodeStatus.FAILED]
    limited = nodes[(nodes[:, CPU] < FOREVER) & (nodes[:, MEMORY] < FOREVER) & (nodes[:, GPUS] > 0)]
    return max(int(state.pools[:, P_CAPACITY].sum()), 1), int(limited[:, CPU].sum()), int(limited[:, MEMORY].sum())
