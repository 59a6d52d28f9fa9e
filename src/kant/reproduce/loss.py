"""Loss: a job that does not fit at once is rejected."""

from __future__ import annotations

from typing import ClassVar

from kant.model.decision import NoFit
from kant.model.taxonomy import Tags, tagged
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline


class Loss(Discipline, frozen=True, tag="loss"):
    """No job waits: one that does not fit on arrival is rejected. For static packing experiments."""

    source: ClassVar[str] = "A. K. Erlang's loss system, 1917; static packing of FGD, USENIX ATC 2023, section 6"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="none", knowledge="none")
    quotas: ClassVar[bool] = False

    def run(self, cycle: CyclePlan) -> None:
        for row, shape, bucket in cycle.pending.walk():
            result = cycle.place(row, shape)
            if isinstance(result, NoFit):
                cycle.reject(row, result)
            else:
                cycle.start(row, result)
            cycle.pending.took(bucket)
