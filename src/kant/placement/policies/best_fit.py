"""Best fit (binpack): the fullest node that fits."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import FREE, Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy, Terms

ROOM = 1 << 20


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return ROOM - int(table[node, FREE])


class BestFit(NodePolicy, frozen=True, tag="best-fit"):
    """The node with the least free GPU on which the pod fits."""

    source: ClassVar[str] = (
        "D. S. Johnson, Near-optimal bin packing algorithms, MIT 1973; Binpack of Kant, arXiv 2510.01256"
    )
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="utilisation", resources="1-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        return {"free GPUs": table[node, FREE] / 1000}
