"""SRSF: shortest remaining service first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_MILLI, Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.order import Order
from kant.queueing.remaining import remaining


class Srsf(Order, frozen=True, tag="srsf"):
    """By remaining run time times GPUs; jobs without an estimate come last."""

    source: ClassVar[str] = "Tiresias, Gu et al., NSDI 2019, section 3.1 (SRSF)"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct", knowledge="estimated", resources="1-d")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        # A key is a score, so it may be a float: the integer product would overflow at scale.
        keys: NDArray[Any] = remaining(jobs, rows, now).astype(np.float64) * (jobs[rows, J_MILLI] / 1000)
        return keys
