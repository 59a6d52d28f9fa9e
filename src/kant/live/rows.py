"""Rows of integers that grow and change, with a log of those changed since a mark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster.change_log import ChangeLog
from kant.cluster.columns import Table, longer


class Rows:
    """A table of `width` columns. Adding or changing a row is logged in `log`."""

    def __init__(self, width: int) -> None:
        self.table: Table = np.zeros((256, width), dtype=np.int64)
        self.used = 0
        self.log = ChangeLog()

    def add(self, values: Sequence[int]) -> int:
        """Add a row; return its index."""
        row = self.used
        if row == len(self.table):
            self.table = longer(self.table)
        self.table[row] = values
        self.used += 1
        self.log.add(row)
        return row

    def set(self, row: int, values: Sequence[int]) -> None:
        """Set the values of a row."""
        self.table[row] = values
        self.log.add(row)

    def since(self, mark: int | None) -> list[int]:
        """Return the rows that were added or changed since the log's `end` was `mark`; without a mark all of them."""
        return list(range(self.used)) if mark is None else self.log.since(mark)

    def keep(self, rows: Sequence[int]) -> dict[int, int]:
        """Drop all other rows. Returns the new index of each."""
        kept = self.table[rows].copy()
        self.table[: len(kept)] = kept
        self.used = len(kept)
        return {old: new for new, old in enumerate(rows)}
