"""GpuPacking: fill devices in use, then nodes in use, then idle nodes."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import D_GPUS, DEVICES, GPUS, IDLE, Table, devices_of
from kant.compiled import inlined
from kant.placement.fits import tightest
from kant.placement.policy import NodePolicy


@inlined
def score(table: Table, node: int, demands: Table, d: int, mix: Table, params: Table, salt: int) -> int:
    if demands[d, D_GPUS] == 0:
        return 0
    gpus = table[node, GPUS]
    if table[node, IDLE] == gpus:
        return int(max(33 - gpus, gpus))
    chosen = tightest(table, node, demands, d)
    idle, left = 0, 0
    for device in range(devices_of(table)):
        if (chosen >> device) & 1:
            idle += 1 if table[node, DEVICES + device] == 1000 else 0
            left += table[node, DEVICES + device] // 10
    return max(50 - idle, 33) if idle > 0 else int(max(100 - left // 10, 50))


class GpuPacking(NodePolicy, frozen=True, tag="gpu-packing"):
    """Prefers devices in use, then idle devices of nodes in use, then idle nodes."""

    source: ClassVar[str] = "Gandiva, Xiao et al., OSDI 2018, as GpuPacking in FGD, USENIX ATC 2023, section 6"
    score = staticmethod(score)
