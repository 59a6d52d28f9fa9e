"""Largest first: big gangs before small jobs."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from kant.cluster.columns import J_MILLI, Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.order import Order


class LargestFirst(Order, frozen=True, tag="largest-first"):
    """The job that asks for the most GPUs goes first."""

    source: ClassVar[str] = "an example of this documentation"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="utilisation", knowledge="none", resources="1-d")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        keys: NDArray[Any] = -jobs[rows, J_MILLI]
        return keys
