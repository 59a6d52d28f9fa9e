"""For how long a run there was no room, by shape: what backfilling need not ask again until something comes free."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table, longer
from kant.cluster.shapes import Shapes
from kant.compiled import compiled

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
def note(table: Table, shape: int, duration: int, stamp: int, now: int) -> None:
    """There is no room for so long a run; with `stamp` -1 only as the reservations stand now."""
    row = table[shape]
    row[N_RUN_NOW], row[N_NOW] = duration, now
    if stamp >= 0:
        row[N_RUN], row[N_STAMP] = duration, stamp


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
        self.meet()
        note(self.table, shape, duration, stamp, self.now)

    def knows(self, shape: int, duration: int, stamp: int) -> bool:
        """Whether there was no room for so long a run, and nothing came free since."""
        self.meet()
        return knows_none(self.table, shape, duration, stamp, self.now)
