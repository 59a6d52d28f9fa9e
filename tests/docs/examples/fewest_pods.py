"""Fewest pods: the node that hosts the fewest pods with GPUs."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import DEVICES, Table, devices_of
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    slots = devices_of(table)
    pods = 0
    for kind in range(slots + 1):  # the row ends with a count of pods for each number of GPUs
        pods += table[node, DEVICES + slots + kind]
    return int(max(params[0] - pods, 0))


class FewestPods(NodePolicy, frozen=True, tag="fewest-pods"):
    """The node that hosts the fewest pods with GPUs, so that one failure hits few of them."""

    enough: int = 64  # nodes with so many pods or more count as alike

    source: ClassVar[str] = "an example of this documentation"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="availability", resources="1-d")
    score = staticmethod(score)

    @property
    def params(self) -> tuple[int, ...]:
        return (self.enough,)
