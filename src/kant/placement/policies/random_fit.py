"""Random: any node that fits."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import D_GPUS, D_MILLI, DEVICES, Table, devices_of
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.fits import mixed, tightest
from kant.placement.policy import NodePolicy


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return mixed(draw, node)


@inlined
def pick(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    if demands[d, D_GPUS] != 1 or demands[d, D_MILLI] == 1000:
        return tightest(table, node, demands, d)
    best, highest = -1, -1
    for device in range(devices_of(table)):
        if table[node, DEVICES + device] >= demands[d, D_MILLI]:
            drawn = mixed(draw, -1 - device)
            if drawn > highest:
                best, highest = device, drawn
    return 1 << best


class Random(NodePolicy, frozen=True, tag="random"):
    """A uniform choice among the nodes that fit, and among the devices that fit for a share."""

    source: ClassVar[str] = "baseline of FGD, Weng et al., USENIX ATC 2023, section 6"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="none", resources="1-d", method="randomised")
    score = staticmethod(score)
    pick = staticmethod(pick)
    fresh: ClassVar[bool] = True
