"""EDDC: the EDD Challenger."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.due_dates import eddc, positions
from kant.queueing.order import Order


class Eddc(Order, frozen=True, tag="eddc"):
    """Shortest first; then a job passes jobs due later that are in time. Jobs without due date or estimate come last.

    The key is the job's position if all waiting jobs are sequenced on one machine that is free now. On a cluster this
    is a heuristic that ignores GPUs. n waiting jobs cost O(n^2) in every cycle.
    """

    source: ClassVar[str] = (
        "EDDC, arXiv 2510.24013 (Cetinkaya et al., Discovering Heuristics with LLMs for Mixed-Integer Programs)"
    )
    tags: ClassVar[Tags] = tagged(Order.tags, objective="tardiness", knowledge="estimated", method="rule learned")
    moving: ClassVar[bool] = True

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return positions(jobs, rows, now, lambda p, d: eddc(p, d, 0))
