"""Topologies: the domain of each node, for each label that an affinity rule names, reported to the core."""

from __future__ import annotations

from kant.kube.follow.mirror import Mirror
from kant.kube.translate.pod_rules import RuleBook
from kant.live.core import Core
from kant.model.event import TopologyChanged


class Topologies:
    """The topologies of one state that affinity rules name."""

    def __init__(self, book: RuleBook, mirror: Mirror) -> None:
        self.book = book
        self.mirror = mirror
        self._reported: dict[str, dict[str, str]] = {}  # the reported domain of each node, by topology
        self.changed: dict[str, None] = {}  # nodes that have joined, or may have changed labels or taints

    def leave(self, node: str) -> None:
        """Forget a node that is gone."""
        for known in self._reported.values():
            known.pop(node, None)

    def tell(self, core: Core) -> None:
        """Emit events for the changes that have not been reported."""
        index, changed, self.changed = core.state.node_index, self.changed, {}
        for topology, eligible in self.book.topologies.items():
            among = changed if topology in self._reported else index
            known = self._reported.setdefault(topology, {})
            views = self.mirror.nodes
            now = {name: eligible.domain(views[name]) if name in views else "" for name in among if name in index}
            other = {name: domain for name, domain in now.items() if domain != known.get(name, "")}
            if other:
                known |= other
                core.happen(TopologyChanged(core.now, topology, other))
