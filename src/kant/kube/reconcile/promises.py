"""Promises: pods that are placed on a node but not known to be bound. They count on the node like its bound pods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import Pod

NO_PODS: Collection[str] = frozenset()
Placed = Sequence[tuple[str, Pod]]
"""Nodes, each with a pod that is to be bound to it."""


class Promises:
    """`promised` has, by node, the uids of pods about to be bound to it; `leaving`, the uids of pods about to go."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.promised: dict[str, dict[str, None]] = {}
        self.leaving: Mapping[str, Mapping[str, None]] = {}

    def promise(self, node: str, pod: str) -> None:
        """Note that a pod is about to be bound to a node."""
        self.promised.setdefault(node, {})[pod] = None

    def on(self, node: str, ignored: Collection[str] = NO_PODS) -> list[Pod]:
        """Return the pods that are on a node or will be bound there, except those that are leaving or `ignored`."""
        pods, gone = self.mirror.pods, self.leaving.get(node, {})
        uids = dict.fromkeys((*self.mirror.on_node.get(node, ()), *self.promised.get(node, ())))
        found = (pods.get(uid) for uid in uids if uid not in gone and uid not in ignored)
        return [pod for pod in found if pod is not None and not is_over(pod)]
