"""Worst fit (spread): the emptiest node that fits."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import FREE, Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy, Terms


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return int(table[node, FREE])


class WorstFit(NodePolicy, frozen=True, tag="worst-fit"):
    """The node with the most free GPU on which the pod fits: kube-scheduler's LeastAllocated for GPUs."""

    source: ClassVar[str] = "LeastAllocated of kube-scheduler (NodeResourcesFit)"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="availability", resources="1-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        return {"free GPUs": table[node, FREE] / 1000}
