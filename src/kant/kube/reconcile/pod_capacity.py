"""How many pods a node may have, which the core does not count. A node that has as many takes no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.quantity import count
from kant.model.errors import InputError

NO_LIMIT = 1 << 30
SPARED = 20.0  # seconds: longer than the first back-off of a job that was refused


class PodCapacity:
    """Counts pods by node: those that are bound, and those that are to be. `full` are the nodes that take no more."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.limits: dict[str, int] = {}
        self.promised: Counter[str] = Counter()
        self.full: set[str] = set()
        self._short: dict[str, float] = {}  # nodes that had too few for a gang, and until when they are left alone

    def limit(self, node: str, pods: object) -> None:
        """So many pods a node may have, as its `allocatable` says."""
        self.limits[node] = NO_LIMIT
        with suppress(InputError):
            self.limits[node] = count(pods, "pods") if isinstance(pods, (str, int, float)) else NO_LIMIT

    def left(self, node: str) -> int:
        return self.limits.get(node, NO_LIMIT) - len(self.mirror.on_node.get(node, ())) - self.promised[node]

    def remark(self) -> str:
        """Which nodes are closed for their pods, in one sentence; "" where none is."""
        crowded = sorted(node for node in self.full if self.left(node) <= 0)
        if len(crowded) == 1:
            return f"node {crowded[0]} has as many pods as it may ({self.limits[crowded[0]]})"
        return f"{len(crowded):,} nodes have as many pods as they may" if crowded else ""

    def short(self, wanted: Mapping[str, int]) -> str:
        """A node that takes fewer pods than are wanted on it; "" where each takes enough."""
        return next((node for node, pods in wanted.items() if self.left(node) < pods), "")

    def spare(self, node: str, now: float) -> None:
        """The node took too few pods for a gang: it takes none for a while, so that the gang is placed elsewhere."""
        self._short[node] = now + SPARED

    def changed(self, nodes: Iterable[str], now: float) -> set[str]:
        """Which of these nodes, and of those that were spared, have become full, or are full no more."""
        moved = set()
        for node in {*nodes, *self._short}:
            spared = self._short.get(node, now) > now
            if not spared:
                self._short.pop(node, None)
            if (spared or self.left(node) <= 0) != (node in self.full):
                self.full ^= {node}
                moved.add(node)
        return moved


def out_of_service(closed: Collection[str], nodes: Collection[str]) -> str:
    """How many of the nodes take nothing new for their own state, in one sentence; "" where all serve."""
    shut = sorted(name for name in closed if name in nodes)
    why = "(cordoned, not ready or malformed)"
    if not nodes:
        return "the cluster has no nodes"
    if len(shut) == 1:
        return f"node {shut[0]} takes nothing new {why}"
    return f"{len(shut):,} of {len(nodes):,} nodes take nothing new {why}" if shut else ""
