"""Most pods: the node on which the most pods of this kind fit."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.fits import own_capacity
from kant.placement.policy import NodePolicy, Terms


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return own_capacity(table, node, demands, d)


class MostPods(NodePolicy, frozen=True, tag="most-pods"):
    """The node on which the most pods of this demand fit, so that a gang touches few nodes."""

    source: ClassVar[str] = "this project"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="fragmentation", resources="multi-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        return {"pods that fit": own_capacity(table, node, demands, d)}
