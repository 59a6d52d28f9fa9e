"""FIFO: first come, first served."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from kant.cluster.columns import J_SUBMIT, Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.order import Order


class Fifo(Order, frozen=True, tag="fifo"):
    """By time of submission."""

    source: ClassVar[str] = "first come, first served"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="none", knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        keys: NDArray[Any] = jobs[rows, J_SUBMIT]
        return keys
