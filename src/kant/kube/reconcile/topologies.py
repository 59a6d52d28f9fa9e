"""Topologies: reports to the core the domain of each node, for each node label that an affinity rule names."""

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
        self._reported: dict[str, dict[str, str]] = {}  # by topology, then by node: the reported domain
        self.changed: dict[str, None] = {}  # nodes that have joined, or whose labels or taints may have changed

    def leave(self, node: str) -> None:
        """Forget a node that is gone."""
        for known in self._reported.values():
            known.pop(node, None)

    def tell(self, core: Core) -> None:
        """Report the changes since the last call to the core, as events."""
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
