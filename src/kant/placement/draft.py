"""A draft of the nodes: a copy of their table, on which the search for victims frees capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import Candidates, PoolColumns
from kant.cluster.quota_condition import QuotaCondition

if TYPE_CHECKING:  # loaded with the first search for victims
    from kant.placement.victims import Asked


class Draft:
    """A private copy of a node table."""

    def __init__(self, table: Table, demands: Table) -> None:
        self.table = table.copy()
        self._demands = demands
        self._log = c.make_log(len(table))

    def victims(
        self, groups: Table, candidates: Candidates, cap: int, trials: int, few: bool, asked: Asked, monotone: bool
    ) -> Table | None:
        """Return the best set found of candidates whose eviction lets the gang fit (`placement/victims.py`), or None.

        With `few`, which requires `monotone`, it is the best of all sets.
        """
        from kant.placement.guesses import Newcomer
        from kant.placement.victims import ASKING

        best: Table = np.zeros(len(candidates.rank), dtype=np.int64)
        if few:
            found = ASKING.cheapest_of_few(asked, candidates, cap, best)
        else:
            newcomer = Newcomer(self.table, self._demands, groups)
            found = ASKING.cheapest_of_many(asked, newcomer, candidates, cap, trials, monotone, best)
        return best if found else None

    def counted_victims(
        self, groups: Table, asked: int, own: NDArray[np.bool_], domains: Table, pool: PoolColumns,
        condition: QuotaCondition, cap: int, exact: int, trials: int,
    ) -> tuple[Table, bool, bool]:  # fmt: skip
        """Return the result of `search_counted` (`placement/counted_search.py`) among the candidates of `pool`."""
        from kant.placement.counted_search import random_numbers, search_counted

        found: tuple[Table, bool, bool] = search_counted(
            self.table, self._demands, groups, asked, own, domains, pool, condition, cap, exact, trials,
            random_numbers(len(pool.rows)),
        )  # fmt: skip
        return found

    def on_one_node(self, groups: Table, candidates: Candidates, cap: int) -> Table | None:
        """Return the best set of candidates without which a gang of one pod fits; the empty set if there is none.

        None if there are too many sets to determine it (`placement/clearing.py`).
        """
        from kant.placement.clearing import TOO_MANY, on_one_node

        best: Table = np.zeros(len(candidates.rank), dtype=np.int64)
        demand = groups.item(0, 1)
        found = on_one_node(self.table, self._demands, demand, candidates, cap, best)
        return None if found == TOO_MANY else best
