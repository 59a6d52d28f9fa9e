"""GpuPacking: fill devices in use, then nodes in use, then idle nodes."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import D_GPUS, DEVICES, GPUS, IDLE, Table, devices_of
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.fits import tightest
from kant.placement.policy import NodePolicy, Terms


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
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
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="fragmentation", resources="1-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        chosen = tightest(table, node, demands, d)
        free = [int(table[node, DEVICES + i]) for i in range(table[node, GPUS]) if (chosen >> i) & 1]
        return {
            "GPUs of an idle node": int(table[node, GPUS]) if table[node, IDLE] == table[node, GPUS] else 0,
            "idle devices taken": free.count(1000),
            "free on its devices": sum(milli // 10 for milli in free) / 100,
        }
