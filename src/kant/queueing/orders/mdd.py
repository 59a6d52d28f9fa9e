"""MDD: smallest modified due date first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.due_dates import positions
from kant.queueing.order import Order


class Mdd(Order, frozen=True, tag="mdd"):
    """By the later of the due date and the end if the job started now; jobs without a due date or estimate come last.

    Jobs that can still be in time go by due date, the others by their remaining estimate. The key is the job's rank by
    this rule at `now`. The rule is for one machine; on a cluster it is a heuristic that ignores GPUs.
    """

    source: ClassVar[str] = (
        "K. R. Baker and J. W. M. Bertrand, A dynamic priority rule, J. Operations Management 3, 1982"
    )
    tags: ClassVar[Tags] = tagged(Order.tags, objective="tardiness", knowledge="estimated")
    moving: ClassVar[bool] = True

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return positions(jobs, rows, now, lambda p, d: np.lexsort((p, d, np.maximum(d, p))))
