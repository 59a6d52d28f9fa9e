"""Spread: the pods of a service far from each other."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.placement.policies.worst_fit import WorstFit
from kant.placement.policy import NodePolicy


class Spread(NodePolicy, frozen=True, tag="spread"):
    """The node with the fewest pods of the same service; on ties, one in the leaf with the fewest, then the emptiest.

    A service is a base job with its burst replicas, else the jobs of one queue, user and name, else one job.
    """

    source: ClassVar[str] = "Spread of Kant, arXiv 2510.01256; PodTopologySpread of kube-scheduler (ScheduleAnyway)"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="availability", resources="1-d topology")
    score = staticmethod(WorstFit.score)
    spreads: ClassVar[bool] = True
