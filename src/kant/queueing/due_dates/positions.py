"""Positions of jobs in a sequence by due dates: the keys of the orders that rank all waiting jobs together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kant.cluster.columns import J_DUE, Table
from kant.model.units import FOREVER
from kant.queueing.remaining import remaining

LONGEST = 1 << 45
"""The longest estimate, thirteen months in µs: longer ones are cut to it, so that sums over jobs do not overflow."""

FARTHEST = 1 << 50
"""The longest time between now and a due date, 35 years in µs: due dates farther away are moved to it."""


def positions(jobs: Table, rows: Table, now: int, sequence: Callable[[Table, Table], Table]) -> Table:
    """Return the position of each of `rows`: first the jobs with a due date and an estimate, as `sequence` orders them.

    `sequence` takes `p`, the remaining estimates, and `d`, the times from `now` to the due dates, in microseconds: a
    due date that has passed is negative, and the machine is free at 0. The other jobs follow by arrival.
    """
    arrival = np.argsort(rows)  # rows are given out by arrival
    due, left = jobs[rows, J_DUE][arrival], remaining(jobs, rows, now)[arrival]
    known = (due >= 0) & (left < FOREVER)
    p = np.minimum(left[known], LONGEST)
    d = np.clip(due[known] - now, -FARTHEST, FARTHEST)
    places = np.empty(len(rows), dtype=np.int64)
    places[np.concatenate((arrival[known][sequence(p, d)], arrival[~known]))] = np.arange(len(rows))
    return places
