"""Gap prices: how valuable a gap, the free part of a GPU, is for typical pods that ask for a share of a GPU.

Pack the typical shares on as few GPUs as possible, where fractional packings are allowed (the relaxed cutting-stock
problem). The dual problem has a price for each size of share, such that no packing of one GPU is worth more than a
whole GPU. Sizes that make a GPU useless for all others cost a whole GPU; sizes with more gaps than shares cost nothing.
A gap is worth the best filling with shares at these prices. A share costs as much as it lowers the worth of its gap.

The prices come from multiplicative weights (Plotkin, Shmoys and Tardos, Mathematics of Operations Research 20(2),
1995): find the best filling, lower the prices of the sizes in it, and take the mean over the rounds. The mean is within
a few percent of the dual, and all numbers are integers. Placing by the dual's prices is bid-price control (Talluri and
van Ryzin, Management Science 44(11), 1998).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once
from kant.model.units import GPU
from kant.placement.cost.fragmentation import M_GPUS, M_MILLI, M_WEIGHT

ROUNDS = 300
PACE = 10
"""Each round lowers the price of the filling's most frequent size, relative to supply, by one part in PACE."""

_ONE = 1 << 20
"""The price of a whole GPU during the computation."""
_SUPPLY = 1 << 12
"""The sum to which supplies are scaled, so that products stay within 63 bits."""


def gap_prices(typical: Table) -> Table:
    """Return for a gap of each size, 0 to 1000 thousandths of a GPU, its worth in thousandths of a whole GPU."""
    supply: dict[int, int] = {}
    for row in typical.tolist():
        if row[M_GPUS] > 0 and row[M_MILLI] < GPU:
            supply[row[M_MILLI]] = supply.get(row[M_MILLI], 0) + row[M_GPUS] * row[M_WEIGHT]
    return _worth(tuple(sorted(supply.items(), reverse=True)))


@lru_cache(maxsize=64)
def _worth(supply: tuple[tuple[int, int], ...]) -> Table:
    """Return the worth of each gap, given (size, number of shares) pairs, the largest size first."""
    worth = np.zeros(GPU + 1, dtype=np.int64)
    if supply:
        total = sum(count for _, count in supply)
        sizes = np.array([size for size, _ in supply], dtype=np.int64)
        counts = np.array([max(count * _SUPPLY // total, 1) for _, count in supply], dtype=np.int64)
        worth[:] = _best_fillings(sizes, _prices(sizes, counts))[0]
        worth = worth * GPU // max(int(worth[GPU]), 1)
    worth[GPU] = GPU
    worth.flags.writeable = False
    return worth


@compiled_at_once
def _best_fillings(sizes: Table, prices: Table) -> tuple[Table, Table]:
    """Return for each gap the worth of its best filling, and the index of a size in it (-1: that of a smaller gap)."""
    worth = np.zeros(1001, dtype=np.int64)
    takes = np.full(1001, -1, dtype=np.int64)
    for gap in range(1, 1001):
        worth[gap] = worth[gap - 1]
        for k in range(sizes.shape[0]):
            if sizes[k] <= gap and worth[gap - sizes[k]] + prices[k] > worth[gap]:
                worth[gap] = worth[gap - sizes[k]] + prices[k]
                takes[gap] = k
    return worth, takes


@compiled_at_once
def _prices(sizes: Table, supply: Table) -> Table:
    """Return the price of each size, at which a whole GPU costs about _ONE."""
    kinds = sizes.shape[0]
    prices = sizes * _ONE // 1000
    total = np.zeros(kinds, dtype=np.int64)
    for _ in range(ROUNDS):
        worth, takes = _best_fillings(sizes, prices)
        total += prices * _ONE // worth[1000]
        count = np.zeros(kinds, dtype=np.int64)
        gap = 1000
        while gap > 0:
            if takes[gap] < 0:
                gap -= 1
            else:
                count[takes[gap]] += 1
                gap -= sizes[takes[gap]]
        scarce = -1  # the size with the least supply relative to its number in the filling
        for k in range(kinds):
            if count[k] > 0 and (scarce < 0 or supply[k] * count[scarce] < supply[scarce] * count[k]):
                scarce = k
        for k in range(kinds):
            prices[k] -= prices[k] * count[k] * supply[scarce] // (PACE * count[scarce] * supply[k])
        prices = np.maximum(prices * _ONE // max(int(prices.max()), 1), 1)
    return total // ROUNDS
