"""A draft of the nodes: a copy of their table for trying what capacity comes free where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import Holders, Weights
from kant.cluster.snapshot import move
from kant.compiled import compiled
from kant.model.placement import WIDTH, Allocation
from kant.placement.clearing import LEVELS, TOO_MANY, cheapest_node, clear
from kant.placement.fits import tightest
from kant.placement.pieces import put


@compiled
def put_pods(table: Table, node: int, demands: Table, d: int, pods: int) -> None:
    """Place `pods` pods of demand `d`, which must fit, on the tightest devices of the node."""
    pieces = np.zeros((pods + 1, WIDTH), dtype=np.int64)
    used = 0
    for _ in range(pods):
        used = put(table, node, tightest(table, node, demands, d), demands, d, pieces, 0, used)


class Draft:
    """A private copy of a node table."""

    def __init__(self, table: Table, demands: Table) -> None:
        self.table = table.copy()
        self._demands = demands
        self._log = c.make_log(len(table))

    def copy(self) -> Draft:
        """Return another draft with the same nodes as this one."""
        return Draft(self.table, self._demands)

    def clear(
        self, places: Table, demand: int, left: int, holders: Holders, weights: Weights, cap: int
    ) -> tuple[Table, NDArray[np.bool_]]:
        """Find which jobs must leave these nodes for up to `left` pods of a demand (`placement/clearing.py`)."""
        levels = min(left.bit_length() + 1, LEVELS)
        pods: Table = np.zeros((len(places), levels), dtype=np.int64)
        leaving = np.zeros((len(places), levels, holders.widest), dtype=np.bool_)
        clear(self.table, self._demands, demand, left, places, holders, weights, cap, pods, leaving)
        return pods, leaving

    def clear_one(
        self, demand: int, holders: Holders, heavy: Table, rows: Table, weights: Weights, cap: int
    ) -> Table | None:
        """Return the entries of the holders that leave a node so that it takes one pod, at the least weight.

        Empty: no such node; None: there are too many sets to find the best (`placement/clearing.py`).
        """
        leaving: Table = np.zeros(holders.widest + 1, dtype=np.int64)
        count = cheapest_node(self.table, self._demands, demand, holders, heavy, rows, weights, cap, leaving)
        return None if count == TOO_MANY else leaving[: max(count, 0)]

    def put(self, node: int, demand: int, pods: int) -> None:
        """Place pods, which must fit."""
        put_pods(self.table, node, self._demands, demand, pods)

    def free(self, pieces: Allocation) -> None:
        """Give back what a job holds."""
        move(self.table, self._log, pieces, self._demands, False)
