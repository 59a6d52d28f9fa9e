"""Victims for a gang of one pod: the best set lies on one node, so no other sets are searched.

What the running jobs hold is kept by node, as arrays, for one cycle. One compiled call looks at each node and at the
candidates on it (`placement/clearing.py`). The search proves its answer on the trial, like any other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Holders, Weights
from kant.cluster.shapes import Shape
from kant.model.placement import Allocation
from kant.queueing.ports import Placer

COST_BITS = LIMB - 60
"""How many bits of a cost are in the lower part of a weight, above the milli-GPUs and the count."""


class HeldByNode:
    """What some jobs hold on each node, and the cost of evicting them. `rows` are the rows of the jobs.

    `cost` and `milli` are as in `Candidate`. Sets are weighed by cost, then milli-GPUs, then number, then rows.
    """

    def __init__(self, rows: Table, held: Sequence[Allocation], cost: Table, milli: Table) -> None:
        self.rows, self.milli = rows, milli
        self.upper: Table = cost >> COST_BITS
        self.lower: Table = ((cost & ((1 << COST_BITS) - 1)) << 60) + (milli << 20) + 1
        self.holders = Holders.of(held, rows)
        own = self.holders.who
        self.heavy: Table = np.lexsort((-rows[own], -self.lower[own], -self.upper[own], self.holders.places()))

    def best(
        self,
        placer: Placer,
        shape: Shape,
        may_leave: NDArray[np.bool_],
        rank: Table,
        cap_milli: int,
        passed: NDArray[np.bool_] | None = None,
    ) -> Table | None:
        """Return the victims for the one pod of `shape`: the first set within the cap by (worst rank, cost, milli-GPUs,
        number, rows), as places in `rows`.

        Empty if no set suffices, or if no job must stop; None if there are too many sets to find the best. `rank` has a
        number for each job; smaller ranks are evicted first. The cap does not count `passed` jobs (`Candidate`).
        """
        capped = self.milli if passed is None else np.where(passed, 0, self.milli)
        may_leave = may_leave & (capped <= cap_milli)
        ranks = np.unique(rank[may_leave])
        answers: dict[int, Table | None] = {}

        def suffices(place: int) -> bool:
            leaving = may_leave & (rank <= ranks[place])
            weights = Weights(self.upper, self.lower, capped, leaving)
            found = answers[place] = placer.draft().clear_one(
                shape.parts[0][1], self.holders, self.heavy, self.rows, weights, cap_milli
            )
            return found is None or len(found) > 0

        if not len(ranks) or not suffices(len(ranks) - 1):
            return np.zeros(0, dtype=np.int64)
        low = bisect_left(range(len(ranks) - 1), True, key=suffices)
        found = answers[low]
        return None if found is None else self.holders.who[found]
