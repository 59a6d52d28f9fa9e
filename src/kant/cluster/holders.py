"""What jobs hold on which nodes, and the cost of evicting them: the arguments of the kernels that search victims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table

LIMB = 62
"""Bits of the lower part of a weight."""


class Holders(NamedTuple):
    """The holders on some nodes, at most `widest` on one.

    Node `k` has the entries `first[k]` up to `first[k + 1]`, the heaviest first. Entry `e` is holder `who[e]`; its
    pieces on that node are rows `start[e]` up to `end[e]` of `pieces`.
    """

    nodes: Table
    first: Table
    who: Table
    start: Table
    end: Table
    pieces: Table
    widest: int


class Weights(NamedTuple):
    """The cost of evicting each holder: its weight in two parts, its milli-GPUs, and whether it may leave at all."""

    upper: Table
    lower: Table
    milli: Table
    may_leave: NDArray[np.bool_]

    @classmethod
    def of(cls, weights: Sequence[int], milli: Sequence[int], may_leave: Sequence[bool]) -> Weights:
        """Create it from one weight for each holder; their sum is below 2**(2 * LIMB)."""
        upper = np.array([weight >> LIMB for weight in weights], dtype=np.int64)
        lower = np.array([weight & ((1 << LIMB) - 1) for weight in weights], dtype=np.int64)
        return cls(upper, lower, np.array(milli, dtype=np.int64), np.array(may_leave, dtype=np.bool_))
