"""The remaining estimated run time of jobs."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_REMAINING, J_SINCE, J_STATUS, Table
from kant.compiled import compiled
from kant.model.units import FOREVER


@compiled
def remaining(jobs: Table, rows: Table, now: int) -> Table:
    """Return the remaining estimate of each job at `now`, microseconds; FOREVER without an estimate."""
    left = np.empty(rows.shape[0], dtype=np.int64)
    for i in range(rows.shape[0]):
        row = rows[i]
        left[i] = jobs[row, J_REMAINING]
        if left[i] < 0:
            left[i] = FOREVER
        elif jobs[row, J_STATUS] == 1:
            left[i] = max(left[i] - (now - jobs[row, J_SINCE]), 0)
    return left
