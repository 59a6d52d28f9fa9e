"""Places of jobs of the job table in a sequence made by due dates: the keys of the orders that look at all who wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kant.cluster.columns import J_DUE, Table
from kant.model.units import FOREVER
from kant.queueing.remaining import remaining

LONGEST = 1 << 45
"""Microseconds, thirteen months: longer estimates count as this, so that the sums of a sequence stay integers."""

FARTHEST = 1 << 50
"""Microseconds, 35 years: due dates farther away, before or after now, count as this."""


def positions(jobs: Table, rows: Table, now: int, sequence: Callable[[Table, Table], Table]) -> Table:
    """The place of each of `rows` when those with a due date and an estimate stand as `sequence(p, d)` puts them.

    `p` is what is left of the estimate and `d` the time from `now` to the due date, in microseconds, so the machine
    is free at 0 and a due date that has passed is negative. The other jobs come after, by arrival.
    """
    arrival = np.argsort(rows)  # rows are given out by arrival
    due, left = jobs[rows, J_DUE][arrival], remaining(jobs, rows, now)[arrival]
    known = (due >= 0) & (left < FOREVER)
    p = np.minimum(left[known], LONGEST)
    d = np.clip(due[known] - now, -FARTHEST, FARTHEST)
    places = np.empty(len(rows), dtype=np.int64)
    places[np.concatenate((arrival[known][sequence(p, d)], arrival[~known]))] = np.arange(len(rows))
    return places
