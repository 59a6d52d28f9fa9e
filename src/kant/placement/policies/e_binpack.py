"""E-Binpack: binpack of nodes and of leaf groups at once."""

from __future__ import annotations

from typing import ClassVar

from kant.model.job import Level
from kant.model.taxonomy import Tags, tagged
from kant.placement.policies.best_fit import BestFit
from kant.placement.policies.most_pods import MostPods
from kant.placement.policy import NodePolicy


class EBinpack(NodePolicy, frozen=True, tag="e-binpack"):
    """The leaf first, then the node: gangs on the fewest leaves and nodes, small jobs where both are already in use.

    A gang uses a leaf that it fills exactly, otherwise one that is already broken, so that whole leaves stay free. In
    it, gangs go node by node where most of their pods fit, the last node as tight as possible. A single pod uses the
    fullest node of the leaves that are already broken, and breaks a whole node or leaf only if it must.
    """

    source: ClassVar[str] = "E-Binpack of Kant, arXiv 2510.01256; the rule by which a leaf is chosen is ours"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="fragmentation locality", resources="1-d topology")
    score = staticmethod(MostPods.score)
    preferred_level: ClassVar[Level] = "node"

    def policy_for(self, group: int, groups: int, pods: int) -> tuple[NodePolicy, bool]:
        if pods == 1:
            return BestFit(ties=self.ties), False
        return MostPods(ties=self.ties), True
