"""The shortest runs without room, by shape: backfilling need not search for these again until capacity is freed."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table, longer
from kant.cluster.shapes import Shapes
from kant.compiled import compiled

# For each shape: the shortest run time (µs) without room, with the stamp of the freed capacity then (N_RUN, N_STAMP); a
# run time without room beside the present reservations and their version (N_RUN_NOW, N_NOW); N_INSISTS: 1 if its jobs
# are always tried, since they can get no reservation or are elastic.
N_RUN, N_STAMP, N_RUN_NOW, N_NOW, N_INSISTS = range(5)
WIDTH = 5


@compiled
def had_no_room(table: Table, shape: int, duration: int, stamp: int, now: int) -> bool:
    """Return whether there was no room for a run of `duration`. With `stamp` -1 only the entry for `now` counts."""
    row = table[shape]
    return bool(
        (row[N_NOW] == now and row[N_RUN_NOW] <= duration)
        or (stamp >= 0 and row[N_STAMP] == stamp and row[N_RUN] <= duration)
    )


@compiled
def note(table: Table, shape: int, duration: int, stamp: int, now: int) -> None:
    """Record that a run of `duration` has no room; with `stamp` -1 only for the current reservations."""
    row = table[shape]
    row[N_RUN_NOW], row[N_NOW] = duration, now
    if stamp >= 0:
        row[N_RUN], row[N_STAMP] = duration, stamp


class NoRoom:
    """The runs without room, for the shapes of a state. `now` is a version number of the reservations."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.table: Table = np.zeros((64, WIDTH), dtype=np.int64)
        self.now = 1
        self._met = 0

    def meet(self) -> None:
        """Add rows for new shapes."""
        shapes = self.shapes.shapes
        if len(shapes) > len(self.table):
            self.table = longer(self.table, len(shapes))
        for shape in shapes[self._met :]:
            self.table[shape.index, [N_STAMP, N_INSISTS]] = -1, not shape.reservable or shape.ceiling != ()
        self._met = len(shapes)

    def add(self, shape: int, duration: int, stamp: int) -> None:
        """Record that a run of `duration` has no room; with `stamp` -1 only for the current reservations."""
        self.meet()
        note(self.table, shape, duration, stamp, self.now)

    def knows(self, shape: int, duration: int, stamp: int) -> bool:
        """Return whether there was no room for a run of `duration`, and nothing was freed since."""
        self.meet()
        return had_no_room(self.table, shape, duration, stamp, self.now)
