"""MDD-VND: the modified due date, improved by variable neighbourhood descent."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.due_dates import mdd_sequence, mdd_vnd, positions
from kant.queueing.order import Order


class MddVnd(Order, frozen=True, tag="mdd-vnd"):
    """By MDD, with the first `depth` jobs improved by swaps and moves; those without due date or estimate come last.

    The key is the job's position if all waiting jobs are sequenced on one machine that is free now. On a cluster this
    is a heuristic that ignores GPUs. MDD sequences all jobs first; this decides which are the first `depth`.
    """

    depth: Annotated[int, Meta(ge=0, le=300)] = 100

    source: ClassVar[str] = "variable neighbourhood descent, Mladenovic and Hansen, Computers & OR 24, 1997, from MDD"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="tardiness", knowledge="estimated", method="search")
    moving: ClassVar[bool] = True

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return positions(jobs, rows, now, self._sequence)

    def _sequence(self, p: Table, d: Table) -> Table:
        sequence = mdd_sequence(p, d, 0)
        first = sequence[: self.depth].copy()
        sequence[: self.depth] = first[mdd_vnd(p[first], d[first], 0)]
        return sequence
