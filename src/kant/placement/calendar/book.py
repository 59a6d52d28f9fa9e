"""The tables of the calendar, as one argument of the compiled functions that search it and move reservations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.placement.topology.index import COLUMNS

# --- gangs: what a shape asks for, a row each, by its index (`Calendar.gang_of`) -------------------------------------
G_FIRST = 0  # row of `parts` with its first group
G_PARTS = 1  # number of groups; 0: the calendar cannot reserve for the gang, or has not seen it
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

# --- spans: what each job holds, by the row of the job (times in µs) --------------------------------------------------
H_FIRST = 0  # row of `arena` with its first piece
H_COUNT = 1  # number of pieces; 0: the job holds nothing
H_START = 2
H_END = 3
H_OPENED = 4  # `Forecast.opened` when a search found no earlier start; 0: not searched since
H_MOVED = 5  # 1: other reservations were allowed to move in that search
H_VERSION = 6  # `version_of` the calendar when `make_way` last failed for the job
H_FAILED = 7  # the start for which it failed
H_UNTIL = 8  # with the same version, `make_way` would fail again until this time
H_BEFORE = 9  # the failure stays valid despite new commitments that end before this time and use no node of H_NODES
H_NODES = 10  # nodes on which the failure depends (bits, by the index of the node modulo NODE_BITS)
SPAN_WIDTH = 11
NODE_BITS = 62


def gang_of(shape: int) -> int:
    """Return the row of a gang, by the index of its shape (below zero if no job has the shape)."""
    return 2 * shape if shape >= 0 else -2 * shape - 1


def rows_of(shape: Shape, first: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the row of a gang, and the rows of its groups, which belong in `parts` from row `first` on."""
    column = ANYWHERE
    if shape.required:
        column = COLUMNS[shape.level - 1] if shape.level else ONE_NODE
    size = shape.gpu_milli, shape.pool_bits, shape.pods
    gang = first, len(shape.parts), column, *size, bool(shape.ceiling)
    return gang, [(*part, number) for part, number in zip(shape.parts, shape.numbers, strict=True)]


FULL = -1
"""A search returns this in place of a start if the caller must make room for more slots and search again."""


class Book(NamedTuple):
    """All tables of the calendar except the store of commitments, which is replaced when it grows."""

    empty: Table
    table: Table
    ledgers: Table
    used: Table  # number of used rows of the store
    freed: Table
    taken: Table
    demands: Table
    most: Table  # by demand: the most pods that fit on one empty node; -1: not computed
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
    arena: Table  # pieces that jobs hold, and stale ones
    pieces: Table  # number of used rows of the arena


def zeros(*shape: int) -> Table:
    """Return a table of zeros."""
    return np.zeros(shape, dtype=np.int64)
