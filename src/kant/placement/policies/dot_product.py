"""DotProd: the node whose free vector is least aligned with the demand."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import CPU_FREE, D_CPU, D_GPUS, D_MILLI, FREE, Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy, Terms, Unit


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    cpu = min(table[node, CPU_FREE], params[0]) / params[0] * (demands[d, D_CPU] / params[0])
    gpu = table[node, FREE] / params[1] * (demands[d, D_GPUS] * demands[d, D_MILLI] / params[1])
    return max(int(100 * (1 - (cpu + gpu) / 2)), 0)


class DotProd(NodePolicy, frozen=True, tag="dotprod"):
    """The node with the smallest dot product of demand and free CPU and GPU, both in units of a large node."""

    cpu_unit: Unit = 128_000  # thousandths of a core
    gpu_unit: Unit = 8_000  # milli-GPUs

    source: ClassVar[str] = "Tetris, Grandl et al., SIGCOMM 2014, as DotProd in FGD, USENIX ATC 2023, section 6"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="utilisation", resources="multi-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        cpu = min(table[node, CPU_FREE], params[0]) / params[0] * (demands[d, D_CPU] / params[0])
        gpu = table[node, FREE] / params[1] * (demands[d, D_GPUS] * demands[d, D_MILLI] / params[1])
        return {"product in CPU": float(cpu), "product in GPUs": float(gpu)}

    @property
    def params(self) -> tuple[int, ...]:
        return (self.cpu_unit, self.gpu_unit)
