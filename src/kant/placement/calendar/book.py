"""The tables of the timeline, as one argument of the kernels that search it and give reservations other devices."""

from __future__ import annotations

from typing import NamedTuple

from kant.cluster.columns import Table

# --- gangs: what a shape asks for, a row each, by its index (`Calendar.gang_of`) -------------------------------------
G_FIRST = 0  # row of `parts` with its first group
G_PARTS = 1  # groups; 0: the timeline cannot promise it a place, or has not met it
G_COLUMN = 2  # of the node table, by which one domain must hold all pods; ANYWHERE, ONE_NODE
G_MILLI = 3
G_POOLS = 4
G_PODS = 5
G_ELASTIC = 6  # 1: how long it runs depends on how many pods it has
GANG_WIDTH = 7
ANYWHERE, ONE_NODE = -1, -2

# --- parts: their groups ----------------------------------------------------------------------------------------------
Q_PODS, Q_DEMAND, Q_NUMBER = range(3)
PART_WIDTH = 3

# --- spans: what a job holds, by its row ------------------------------------------------------------------------------
H_FIRST = 0  # row of `arena` with its first piece
H_COUNT = 1  # pieces; 0: it holds nothing
H_START = 2
H_END = 3
H_OPENED = 4  # what `Forecast.opened` was when it could not start sooner; 0: it was not asked in vain
H_MOVED = 5  # 1: others might have moved for it then
SPAN_WIDTH = 6


def gang_of(shape: int) -> int:
    """The row of a gang, by the index of its shape, which is below zero where no job is of it."""
    return 2 * shape if shape >= 0 else -2 * shape - 1


FULL = -1
"""The start that a search says where there must be room for more slots first."""


class Book(NamedTuple):
    """All but the store, which moves as it grows."""

    empty: Table
    table: Table
    ledgers: Table
    used: Table  # rows of the store
    freed: Table
    taken: Table
    demands: Table
    most: Table  # pods on the roomiest node, by demand; -1: nobody has asked
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
    arena: Table  # pieces that jobs hold, and that others have held
    pieces: Table  # rows of the arena
