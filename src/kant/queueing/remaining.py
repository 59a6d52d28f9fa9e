"""How much of its estimated run time a job still has before it."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_REMAINING, J_SINCE, J_STATUS, Table
from kant.model.units import FOREVER


def remaining(jobs: Table, rows: Table, now: int) -> Table:
    """Microseconds left of the estimate of each job at `now`; FOREVER where there is no estimate."""
    left = jobs[rows, J_REMAINING]
    ran = np.where(jobs[rows, J_STATUS] == 1, now - jobs[rows, J_SINCE], 0)
    return np.where(left < 0, FOREVER, np.maximum(left - ran, 0))
