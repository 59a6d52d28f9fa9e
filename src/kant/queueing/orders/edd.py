"""EDD: earliest due date first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_DUE, Table
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER
from kant.queueing.order import Order


class Edd(Order, frozen=True, tag="edd"):
    """By due date; jobs without one come last. Needs no run-time estimates."""

    source: ClassVar[str] = "J. R. Jackson, Scheduling a production line to minimize maximum tardiness, 1955"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="tardiness", knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        due = jobs[rows, J_DUE]
        return np.where(due < 0, FOREVER, due)
