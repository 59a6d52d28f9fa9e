"""Pieces: the rows of a placement under construction."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table, take_piece
from kant.cluster.shapes import Shape
from kant.compiled import inlined
from kant.model.placement import WIDTH
from kant.placement.slices import cut


class PieceBuffer:
    """Rows in which placements are built, one at a time. `gpus` are the GPUs of the whole cluster."""

    def __init__(self, gpus: int) -> None:
        self.rows: Table = np.zeros((64, WIDTH), dtype=np.int64)
        self._gpus = gpus
        self._limited: dict[int, Shape] = {}  # shapes whose longest placement grows with the cluster's GPUs

    def has_gpus(self, gpus: int) -> None:
        """Grow the buffer for a cluster of `gpus` GPUs."""
        self._gpus = max(gpus, self._gpus)
        for shape in list(self._limited.values()):
            self.reserve(shape)

    def reserve(self, shape: Shape) -> None:
        """Make room for the longest placement of `shape`: a row for each pod, as far as the cluster's GPUs suffice."""
        if shape.pods < len(self.rows):
            return
        most = 1
        for group in shape.groups:
            places = self._gpus * (1000 // group.demand.milli) if group.demand.gpus else group.count
            most += min(group.count, places)
            if places < group.count:
                self._limited[shape.index] = shape
        if most > len(self.rows):
            self.rows = np.zeros((most, WIDTH), dtype=np.int64)


@inlined
def write_piece(pieces: Table, row: int, node: int, pods: int, mask: int, demands: Table, d: int) -> None:
    """Write the piece of `pods` pods of demand `d` on the devices `mask` of a node, for the first group.

    The caller writes GROUP for other groups once all of their pieces are written.
    """
    piece = pieces[row]
    piece[0] = node
    piece[1] = pods
    piece[2] = mask
    piece[3] = demands[d, c.D_MILLI] if demands[d, c.D_GPUS] > 0 else demands[d, c.D_PARTS]
    piece[4] = pods * demands[d, c.D_CPU]
    piece[5] = pods * demands[d, c.D_MEMORY]
    piece[6] = demands[d, c.D_TAG]
    piece[7] = 0
    piece[8] = demands[d, c.D_COUNTED]


@inlined
def put(table: Table, node: int, mask: int, demands: Table, d: int, pieces: Table, begin: int, used: int) -> int:
    """Take the devices `mask` for one pod and append it to `pieces`. Returns the number of rows used.

    Consecutive pods of whole GPUs, or without GPUs, on one node share a piece. Only pieces from row `begin` on grow.
    """
    write_piece(pieces, used, node, 1, mask, demands, d)
    piece = pieces[used]
    if demands[d, c.D_SLICES] > 0:
        cut(table, node, demands, d, piece)
    take_piece(table, piece, demands)
    last = pieces[used - 1]
    if used > begin and last[0] == node and last[6] == piece[6] and last[6] != 0:
        last[1] += 1
        last[2] |= piece[2]
        last[4] += piece[4]
        last[5] += piece[5]
        return used
    return used + 1
