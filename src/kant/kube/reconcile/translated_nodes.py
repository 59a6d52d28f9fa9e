"""Nodes of the API server as nodes of the core: their topology, reservations of whole nodes, and errors in nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Node as View
from kant.kube.reconcile.complaints import Complaints
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.translate.levels import Levels, levels_seen
from kant.kube.translate.nodes import about, contradictions, node_of
from kant.kube.translate.pod_rules import NO_LIMIT, amounts_at
from kant.kube.translate.shares import GpuShares
from kant.model.errors import InputError
from kant.model.node import MAX_POOLS, Node
from kant.model.status import NodeStatus

if TYPE_CHECKING:
    from kant.kube.translate.reservations import ReservedNodes


class TranslatedNodes:
    """`levels` has the topology levels, `reserved` the reservations of whole nodes.

    `shares_anew`: a node shares its GPUs in a way that no node used when the state was built.
    """

    def __init__(self, mirror: Mirror, devices: DynamicResources, shares: GpuShares, complaints: Complaints) -> None:
        self.mirror = mirror
        self.devices = devices
        self.shares = shares
        self.shares_anew = False
        self.complaints = complaints
        self.levels = Levels()
        self.reserved: list[ReservedNodes] = []
        self.left_out: set[str] = set()  # nodes of the pools beyond the limit
        self._labels: dict[str, str] | None = None  # the label keys of nodes, if no Topology defines the levels
        self._split: dict[str, str] = {}  # complaints about nodes that can be used nevertheless

    def begin(self) -> None:
        """Start over for a new state: determine the topology levels."""
        found, wrong = self._levels()
        self._labels = None if found else _labels_of(self.mirror.nodes.values())
        self.levels = found or levels_seen((self._labels,))
        self.complaints.found("Topology", wrong)
        self._look_for_contradictions()
        self.left_out, self.shares_anew = set(), False
        self.reserved = []

    def _levels(self) -> tuple[Levels | None, dict[str, str]]:
        """Return the levels that Topology objects define (None: no usable object), and the errors by object."""
        kinds = [items for kind, items in self.mirror.objects.items() if kind.startswith("topologies") and items]
        if not kinds:
            return None, {}
        from kant.kube.translate.topology_objects import levels_of  # imported with the first Topology

        return levels_of(item for items in kinds for item in items.values())

    def node(self, view: View, now: int) -> tuple[Node, NodeStatus, int, int] | None:
        """Return a node, its status, when its drain ends (-1: it is not drained), and how many of its GPUs are lost.

        Returns None for a node that cannot be translated.
        """
        if view.metadata.name in self.left_out:
            return None
        try:
            seen = node_of(view, self.levels, self.devices.gpus_at(view))
        except InputError as wrong:
            self.complaints[about(view)] = str(wrong)
            return None
        self.shares_anew = self.shares_anew or self.shares.is_new(view)
        self.complaints.drop(about(view), self._split.get(about(view), ""))
        node, status, until = replace(seen.node, amounts=self._amounts(view)), seen.status, -1
        for reserved in self.reserved:
            if reserved.start <= now < reserved.end and matches(reserved, view.metadata.labels or {}):
                if reserved.queues:
                    node = replace(node, queues=tuple(sorted({*node.queues, *reserved.queues})))
                elif status == NodeStatus.IN_SERVICE:
                    status, until = NodeStatus.DRAINING, now
        return node, status, until, seen.lost

    def joins(self, views: Collection[View]) -> bool:
        """Read the topology labels of joining nodes. Returns whether the levels, and thus all nodes, have changed."""
        if self._labels is not None and (labels := _labels_of(views)).keys() - self._labels:
            self._labels |= labels
            if levels_seen((self._labels,)) != self.levels:
                return True
        if self.levels.hbd:
            self._look_for_contradictions()
        return False

    def _look_for_contradictions(self) -> None:
        self._split = contradictions(self.mirror.nodes.values(), self.levels)
        self.complaints |= self._split

    def leave_out_rare(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes of the largest pools, up to the limit of pools in a cluster. The other nodes get no jobs."""
        sizes = Counter(node.pool for node in nodes)
        kept = {pool for pool, _ in sizes.most_common(MAX_POOLS)}
        self.left_out = {node.name for node in nodes if node.pool not in kept}
        for name in self.left_out:
            what = "GPU models and reservations of the nodes"
            self.complaints[f"node {name}"] = f"{what} make more than {MAX_POOLS} pools; the node gets no pods"
        return tuple(node for node in nodes if node.pool in kept)

    def _amounts(self, view: View) -> tuple[tuple[str, int], ...]:
        """Return a node's amounts of other resources. Those served by claims get NO_LIMIT: a filter checks them."""
        amounts = dict(amounts_at(view))
        if self.mirror.has_devices:
            amounts |= {name: NO_LIMIT for name in self.mirror.devices.served if not amounts.get(name)}
        return tuple(sorted(amounts.items()))


def matches(reserved: ReservedNodes, labels: dict[str, str]) -> bool:
    """Whether this reservation reserves a node with these labels."""
    return all(labels.get(key) == value for key, value in reserved.selector.items())


def _labels_of(views: Iterable[View]) -> dict[str, str]:
    return {key: "" for view in views for key in view.metadata.labels or ()}
