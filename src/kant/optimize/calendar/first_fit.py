"""First fit: each booking in turn gets the lowest place that is free for its whole window."""

from __future__ import annotations

import numpy as np

from kant.compiled import compiled
from kant.optimize.calendar.sections import Numbers, Sections


@compiled
def first_fit(s: Sections, order: Numbers, offsets: Numbers) -> int:
    """Fill `offsets`, the pinned bookings first and then in `order`; returns the GPUs that the plan needs.

    Collisions between pinned bookings are not detected.
    """
    n = s.gpus.shape[0]
    offsets[:] = s.pinned
    needed = 0
    for i in range(n):
        if offsets[i] >= 0:
            needed = max(needed, offsets[i] + s.gpus[i])
    for x in range(n):
        i = order[x]
        if offsets[i] >= 0:
            continue
        at, settled = 0, False
        while not settled:
            settled = True
            for y in range(s.meets_from[i], s.meets_from[i + 1]):
                j = s.meets[y]
                if offsets[j] >= 0 and at < offsets[j] + s.gpus[j] and offsets[j] < at + s.gpus[i]:
                    at = (offsets[j] + s.gpus[j] + s.alignment[i] - 1) // s.alignment[i] * s.alignment[i]
                    settled = False
        offsets[i] = at
        needed = max(needed, at + s.gpus[i])
    return needed


def rank_of(order: Numbers) -> Numbers:
    """The position of each booking in an order."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank
