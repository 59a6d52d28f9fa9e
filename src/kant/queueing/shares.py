"""Shares: what each queue holds in the course of one cycle, and on which path of the tree it stands."""

from __future__ import annotations

from kant.cluster.columns import CPU, GPUS, MEMORY, P_CAPACITY, STATUS
from kant.cluster.holdings import Held
from kant.cluster.state import ClusterState
from kant.model.status import NodeStatus
from kant.model.units import FOREVER


class Shares:
    """A copy of what queues hold, which the plan under way writes on. Made once a cycle, for orders that share.

    A queue is counted with all that stand above it, so that siblings can be compared on every level. Queues that no
    tree knows stand alone, with weight 1.
    """

    def __init__(self, state: ClusterState, now: int) -> None:
        self.state = state
        self.now = now
        self.holdings = state.holdings
        self.capacity = _capacity(state)
        self.held: dict[int, list[int]] = {}  # by path node
        self._paths: dict[int, tuple[int, ...]] = {}
        for queue, held in enumerate(self.holdings.held):
            self.add(queue, (held[0], held[1], held[2]), 1)

    def path(self, queue: int) -> tuple[int, ...]:
        """The nodes of the tree from the root to `queue`; one number below zero where the tree does not know it."""
        path = self._paths.get(queue)
        if path is None:
            tree, node = self.holdings.tree, self.holdings.node_of[queue]
            path = (-1 - queue,) if tree is None or node < 0 else tree.paths[node][::-1]
            self._paths[queue] = path
        return path

    def weight(self, node: int) -> int:
        """The weight of a path's node among its siblings."""
        return self.holdings.tree.weight(node) if self.holdings.tree is not None and node >= 0 else 1

    def add(self, queue: int, held: Held, sign: int) -> None:
        """A job of `queue` starts (1) or stops (-1) in this plan."""
        for node in self.path(queue):
            own = self.held.setdefault(node, [0, 0, 0])
            for i in range(3):
                own[i] += sign * held[i]

    def dominant(self, node: int) -> float:
        """The largest share of one resource of the cluster that a path's node holds."""
        held = self.held.get(node, [0, 0, 0])
        return max(h / capacity for h, capacity in zip(held, self.capacity, strict=True) if capacity > 0)


def _capacity(state: ClusterState) -> Held:
    """GPUs in service, and the CPU and memory of nodes that limit them; at least 1 milli-GPU."""
    nodes = state.table[state.table[:, STATUS] != NodeStatus.FAILED]
    limited = nodes[(nodes[:, CPU] < FOREVER) & (nodes[:, MEMORY] < FOREVER) & (nodes[:, GPUS] > 0)]
    return max(int(state.pools[:, P_CAPACITY].sum()), 1), int(limited[:, CPU].sum()), int(limited[:, MEMORY].sum())
