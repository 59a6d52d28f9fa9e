"""Best effort: a job that does not fit is passed over."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.queueing.discipline import Discipline


class BestEffort(Discipline, frozen=True, tag="best-effort"):
    """Every job that fits starts, in order; a job that does not fit waits. A shape that did not fit is tried again when
    capacity is freed."""

    source: ClassVar[str] = "BestEffortFIFO of Kueue; Best-Effort FIFO of Kant, arXiv 2510.01256"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="utilisation", knowledge="none")

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue, shape)
