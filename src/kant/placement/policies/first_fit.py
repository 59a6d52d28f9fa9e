"""First fit: the first node that fits."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return 0


class FirstFit(NodePolicy, frozen=True, tag="first-fit"):
    """The first node, in tie order, on which the pod fits."""

    source: ClassVar[str] = "D. S. Johnson, Near-optimal bin packing algorithms, MIT 1973"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="utilisation", resources="1-d")
    score = staticmethod(score)
