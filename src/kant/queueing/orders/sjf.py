"""SJF: shortest job first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_ESTIMATE, Table
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER
from kant.queueing.order import Order


class Sjf(Order, frozen=True, tag="sjf"):
    """By estimated run time as submitted; jobs without an estimate come last."""

    source: ClassVar[str] = "shortest job first"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct", knowledge="estimated")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        estimate = jobs[rows, J_ESTIMATE]
        return np.where(estimate < 0, FOREVER, estimate)
