"""A sort of a few integers for compiled code: NumPy's sorts, as Numba compiles them, count references at each step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.compiled import inlined

RUN = 8
"""The length of the runs of keys that insertion sort puts in order, before the runs are merged."""


@inlined
def in_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of `keys` in ascending order of their values; equal ones keep their order."""
    count = len(keys)
    order = np.arange(count)
    for first in range(0, count, RUN):
        for k in range(first + 1, min(first + RUN, count)):
            at = k
            while at > first and keys[order[at - 1]] > keys[k]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = k
    if count <= RUN:
        return order
    width, merged = RUN, np.empty(count, dtype=np.int64)
    while width < count:
        for first in range(0, count, 2 * width):
            middle, end = min(first + width, count), min(first + 2 * width, count)
            left, right = first, middle
            for k in range(first, end):
                if right == end or (left < middle and keys[order[left]] <= keys[order[right]]):
                    merged[k] = order[left]
                    left += 1
                else:
                    merged[k] = order[right]
                    right += 1
        order[:] = merged
        width *= 2
    return order
