"""A draft of the nodes: a copy of their table for trying what capacity comes free where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import Candidates
from kant.cluster.quota_condition import QuotaCondition

if TYPE_CHECKING:  # loaded with the first search for victims
    from kant.placement.victims import Asked, Counted


class Draft:
    """A private copy of a node table."""

    def __init__(self, table: Table, demands: Table) -> None:
        self.table = table.copy()
        self._demands = demands
        self._log = c.make_log(len(table))

    def victims(
        self, groups: Table, candidates: Candidates, cap: int, trials: int, few: bool,
        view: tuple[Table, QuotaCondition] | Asked, monotone: bool,
    ) -> Table | None:  # fmt: skip
        """Return the best set of candidates found without which the newcomer fits (`placement/victims.py`), or None.

        With `few`, which wants a `monotone` newcomer, it is the best of all. `view` is the domain of each node and the
        quota condition, if a count of free places in one domain decides whether the newcomer fits; else it is asked.
        """
        from kant.placement.guesses import Newcomer
        from kant.placement.victims import ASKING, COUNTING, counting

        best: Table = np.zeros(len(candidates.rank), dtype=np.int64)
        newcomer, search = Newcomer(self.table, self._demands, groups), ASKING
        own: Counted | tuple[Table, QuotaCondition] | Asked = view
        if isinstance(view, tuple):
            search, own = COUNTING, counting(newcomer, candidates, *view)
        if few:
            found = search.cheapest_of_few(own, candidates, cap, best)
        else:
            found = search.cheapest_of_many(own, newcomer, candidates, cap, trials, monotone, best)
        return best if found else None

    def on_one_node(self, groups: Table, candidates: Candidates, cap: int) -> Table | None:
        """Return the best set of candidates without which a gang of one pod fits; the empty set if there is none.

        None if there are too many sets to tell (`placement/clearing.py`).
        """
        from kant.placement.clearing import TOO_MANY, on_one_node

        best: Table = np.zeros(len(candidates.rank), dtype=np.int64)
        demand = groups.item(0, 1)
        found = on_one_node(self.table, self._demands, demand, candidates, cap, best)
        return None if found == TOO_MANY else best
