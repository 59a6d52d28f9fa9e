"""Best fit over CPU and GPU."""

from __future__ import annotations

from typing import ClassVar

from kant.cluster.columns import CPU_FREE, D_CPU, D_GPUS, D_MILLI, FREE, Table
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.policy import NodePolicy, Terms, Unit


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    cpu_left = min(table[node, CPU_FREE] - demands[d, D_CPU], params[0])
    gpu_left = table[node, FREE] - demands[d, D_GPUS] * demands[d, D_MILLI]
    return max(int(100 * (1 - 0.5 * cpu_left / params[0] - 0.5 * gpu_left / params[1])), 0)


class BestFitCpuGpu(NodePolicy, frozen=True, tag="best-fit-cpu-gpu"):
    """The node with the least CPU and GPU left once the pod runs there: the mean of both, in units of a large node."""

    cpu_unit: Unit = 128_000  # thousandths of a core
    gpu_unit: Unit = 8_000  # milli-GPUs

    source: ClassVar[str] = "BestFit of FGD, Weng et al., USENIX ATC 2023, section 6"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="utilisation", resources="multi-d")
    score = staticmethod(score)

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        gpus = table[node, FREE] - demands[d, D_GPUS] * demands[d, D_MILLI]
        cores = min(table[node, CPU_FREE] - demands[d, D_CPU], params[0])
        return {"GPUs left": gpus / 1000, "cores left, capped": cores / 1000}

    @property
    def params(self) -> tuple[int, ...]:
        return (self.cpu_unit, self.gpu_unit)
