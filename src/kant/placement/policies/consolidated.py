"""Consolidated gang: a gang on the fewest nodes."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.placement.policies.best_fit import BestFit
from kant.placement.policies.first_fit import FirstFit
from kant.placement.policies.most_pods import MostPods
from kant.placement.policies.worst_fit import WorstFit
from kant.placement.policy import NodePolicy


class Consolidated(NodePolicy, frozen=True, tag="consolidated"):
    """A gang on the fewest nodes: node by node where most of its pods fit, the last node as tight as possible.

    A job of one pod is placed by `single`. The last, smaller group of a gang (the rest when a job is divided into whole
    nodes) is placed by `remainder`.
    """

    single: BestFit | FirstFit | WorstFit = BestFit()
    remainder: BestFit | FirstFit | WorstFit = BestFit()

    source: ClassVar[str] = "HeliosArtifact, Hu et al., SC 2021 (ConsolidatePlacement); yarn of Tiresias, NSDI 2019"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="locality", resources="1-d topology")
    score = staticmethod(MostPods.score)

    def policy_for(self, group: int, groups: int, pods: int) -> tuple[NodePolicy, bool]:
        if groups > 1 and group == groups - 1:
            return self.remainder, False
        if pods == 1 and groups == 1:
            return self.single, False
        return MostPods(ties=self.ties), True
