"""For how long a run there was no room, by shape: what backfilling need not ask again until something comes free."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_ATTAINED, J_PRIORITY, J_REMAINING, J_SHAPE, Table, longer
from kant.cluster.shapes import Shapes
from kant.compiled import compiled
from kant.model.units import FOREVER, MINUTE
from kant.queueing.waiting import P_TOLD

# Of each shape: the shortest run time (µs) that had no room, and what had come free by then; the same as long as the
# reservations stand as they do; and 1 where its jobs are served all the same: they can be promised nothing, so they may
# insist, or they have several sizes.
N_RUN, N_STAMP, N_RUN_NOW, N_NOW, N_INSISTS = range(5)
WIDTH = 5


@compiled
def knows_none(table: Table, shape: int, duration: int, stamp: int, now: int) -> bool:
    """Whether there was no room for so long a run. With `stamp` -1 only what holds `now` counts."""
    row = table[shape]
    return bool(
        (row[N_NOW] == now and row[N_RUN_NOW] <= duration)
        or (stamp >= 0 and row[N_STAMP] == stamp and row[N_RUN] <= duration)
    )


@compiled
def first_hopeful(
    rows: Table, at: int, jobs: Table, places: Table, table: Table, promised: int, stamp: int, now: int, lowest: int
) -> int:
    """The place in `rows` from `at` on of the first job that may start, or is of a priority above `lowest`, or was not
    told that it waits; their number where there is none. For `promised` see `Estimates`, whose run times these are.
    """
    for i in range(at, rows.shape[0]):
        job = jobs[rows[i]]
        shape = job[J_SHAPE]
        if places[rows[i], P_TOLD] == 0 or job[J_PRIORITY] > lowest or table[shape, N_INSISTS] == 1:
            return i
        duration = job[J_REMAINING] if job[J_REMAINING] < 0 else max(job[J_REMAINING], 1)
        if promised >= 0 and job[promised] >= 0:
            duration = max(job[promised] - job[J_ATTAINED], MINUTE)
        if not knows_none(table, shape, FOREVER if duration < 0 else duration, stamp, now):
            return i
    return int(rows.shape[0])


class NoRoom:
    """What is known of the shapes of a state. `now` is a number for the reservations as they stand."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.table: Table = np.zeros((64, WIDTH), dtype=np.int64)
        self.now = 1
        self._met = 0

    def meet(self) -> None:
        """There is a row for each shape."""
        shapes = self.shapes.shapes
        if len(shapes) > len(self.table):
            self.table = longer(self.table, len(shapes))
        for shape in shapes[self._met :]:
            self.table[shape.index, [N_STAMP, N_INSISTS]] = -1, not shape.reservable or shape.ceiling != ()
        self._met = len(shapes)

    def add(self, shape: int, duration: int, stamp: int) -> None:
        """There is no room for so long a run; with `stamp` -1 only as the reservations stand now."""
        row = self.table[shape]
        row[N_RUN_NOW], row[N_NOW] = duration, self.now
        if stamp >= 0:
            row[N_RUN], row[N_STAMP] = duration, stamp
