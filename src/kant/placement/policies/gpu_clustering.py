"""GpuClustering: pods that request the same number of GPUs together."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import D_GPUS, D_TAG, DEVICES, FREE, Table, devices_of
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy, Terms, Unit


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    if demands[d, D_GPUS] == 0:
        return 0
    slots = devices_of(table)
    hosts = DEVICES + slots
    same, others = False, False
    for tag in range(slots + 1):
        if table[node, hosts + tag] > 0:
            if tag == demands[d, D_TAG]:
                same = True
            else:
                others = True
    base = 25 * (params[0] - min(table[node, FREE], params[0])) // params[0]
    if same:
        return int(base + (50 if others else 75))
    return int(base if others else base + 25)


class GpuClustering(NodePolicy, frozen=True, tag="gpu-clustering"):
    """Prefers nodes with only pods of the same GPU demand as this one, then nodes with some such pods."""

    gpu_unit: Unit = 8_000  # milli-GPUs

    source: ClassVar[str] = "Gandiva, Xiao et al., OSDI 2018, as GpuClustering in FGD, USENIX ATC 2023, section 6"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="fragmentation", resources="1-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        hosts = DEVICES + devices_of(table)
        sizes = table[node, hosts : hosts + devices_of(table) + 1]
        same, every = int(sizes[max(demands[d, D_TAG], 0)]), int(sizes.sum())
        return {"pods of its size": same, "other pods": every - same, "free GPUs": table[node, FREE] / 1000}

    @property
    def params(self) -> tuple[int, ...]:
        return (self.gpu_unit,)
