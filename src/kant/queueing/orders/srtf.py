"""SRTF: shortest remaining time first."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.order import Order
from kant.queueing.remaining import remaining


class Srtf(Order, frozen=True, tag="srtf"):
    """By remaining estimated run time; jobs without an estimate come last."""

    source: ClassVar[str] = "L. Schrage, A proof of the optimality of the SRPT discipline, Operations Research 16, 1968"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct", knowledge="estimated")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return remaining(jobs, rows, now)
