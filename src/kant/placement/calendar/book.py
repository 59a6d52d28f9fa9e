"""The tables of the calendar, bundled as one argument of the kernels that search it and move reservations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.placement.topology.index import COLUMNS

# --- gangs: what a shape asks for, a row each, by its index (`Calendar.gang_of`) -------------------------------------
G_FIRST = 0  # row of `parts` with its first group
G_PARTS = 1  # groups; 0: the calendar cannot reserve for it, or has not seen it
G_COLUMN = 2  # column of the node table for the domain that must hold all pods; ANYWHERE, ONE_NODE
G_MILLI = 3
G_POOLS = 4
G_PODS = 5
G_ELASTIC = 6  # 1: its run time depends on its number of pods
GANG_WIDTH = 7
ANYWHERE, ONE_NODE = -1, -2

# --- parts: the groups of the gangs -------------------------------------------------------------------------------
Q_PODS, Q_DEMAND, Q_NUMBER = range(3)
PART_WIDTH = 3

# --- spans: what each job holds, by the row of the job ----------------------------------------------------------------
H_FIRST = 0  # row of `arena` with its first piece
H_COUNT = 1  # pieces; 0: it holds nothing
H_START = 2
H_END = 3
H_OPENED = 4  # `Forecast.opened` when no sooner start was found; 0: not searched since
H_MOVED = 5  # 1: other reservations were allowed to move in that search
H_VERSION = 6  # `version_of` the calendar when other reservations last could not move for it
H_FAILED = 7  # the start that it would have had then
H_UNTIL = 8  # until when they cannot move, if the version stays the same
H_BEFORE = 9  # nor if a job starts that ends before this time,
H_NODES = 10  # on other nodes than these (bits, by the index of the node modulo NODE_BITS)
SPAN_WIDTH = 11
NODE_BITS = 62


def gang_of(shape: int) -> int:
    """Return the row of a gang, by the index of its shape (below zero if no job has the shape)."""
    return 2 * shape if shape >= 0 else -2 * shape - 1


def rows_of(shape: Shape, first: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the row of a gang, and the rows of its groups; the groups go from row `first` of `parts` on."""
    column = ANYWHERE
    if shape.required:
        column = COLUMNS[shape.level - 1] if shape.level else ONE_NODE
    size = shape.gpu_milli, shape.pool_bits, shape.pods
    gang = first, len(shape.parts), column, *size, bool(shape.ceiling)
    return gang, [(*part, number) for part, number in zip(shape.parts, shape.numbers, strict=True)]


FULL = -1
"""The start that a search returns if room for more slots must be made first."""


class Book(NamedTuple):
    """All tables except the store, which is replaced when it grows."""

    empty: Table
    table: Table
    ledgers: Table
    used: Table  # rows of the store
    freed: Table
    taken: Table
    demands: Table
    most: Table  # pods on the empty node that fits the most, by demand; -1: not computed
    slots: Table
    bounds: Table
    floors: Table
    marks: Table
    entries: Table
    heap: Table
    rows: Table
    gangs: Table
    parts: Table
    spans: Table
    arena: Table  # pieces of jobs, and stale ones
    pieces: Table  # rows of the arena


def zeros(*shape: int) -> Table:
    """Return an empty table."""
    return np.zeros(shape, dtype=np.int64)
