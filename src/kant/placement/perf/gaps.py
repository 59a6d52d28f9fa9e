"""Assigns gradients to gaps: an exact choice over whole buckets.

The gradients of a layer are ready once its own backward pass has ended. They can be summed during the backward pass of
any later layer, in one message for each half of that pass, or at the end, where no computation hides them. FSMoE fills
the gaps from the last layer on and leaves the rest to differential evolution (Pan et al., ASPLOS 2025, section 5). Kant
puts gradients in buckets, and dynamic programming over (layer, buckets that are ready) finds the least total.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once
from kant.placement.perf.streams import Floats


@compiled_at_once
def split_halves(experts: Floats, attention: Floats, total: Floats, first: Table) -> None:
    """Find the least seconds in which a layer sums each number of buckets, and how many of them its experts sum."""
    for k in range(len(total)):
        total[k] = np.inf
        for here in range(k + 1):
            seconds = experts[here] + attention[k - here]
            if seconds < total[k]:
                total[k], first[k] = seconds, here


@compiled_at_once
def _spread(seconds: Floats, kinds: Table, arrivals: Table, tail: Floats, value: Floats, choice: Table) -> None:
    steps, most = len(kinds), len(tail)
    for ready in range(most):
        value[steps, ready] = tail[ready]
    for step in range(steps - 1, -1, -1):
        for ready in range(most):
            best, taken = np.inf, 0
            for k in range(ready + 1):
                after = min(ready - k + arrivals[step + 1], most - 1)
                found = seconds[kinds[step], k] + value[step + 1, after]
                if found < best:
                    best, taken = found, k
            value[step, ready] = best
            choice[step, ready] = taken


def spread(seconds: Floats, kinds: Table, arrivals: Table, tail: Floats) -> tuple[float, tuple[int, ...]]:
    """Return the least seconds of a backward pass, and how many buckets each layer sums.

    The layers are in the order of the backward pass: layer i is of kind `kinds[i]`, and `seconds[kind, k]` is its time
    if it sums k buckets. `arrivals[i]` more buckets are ready before layer i, and `arrivals[-1]` after the last layer;
    `tail[k]` are the seconds to sum k buckets at the end. Of equal choices the smallest is taken.
    """
    steps, most = len(kinds), len(tail)
    value, choice = np.zeros((steps + 1, most)), np.zeros((steps + 1, most), dtype=np.int64)
    _spread(seconds, kinds, arrivals, tail, value, choice)
    ready, taken = int(arrivals[0]), []
    total = float(value[0, ready])
    for step in range(steps):
        k = int(choice[step, ready])
        taken.append(k)
        ready += int(arrivals[step + 1]) - k
    return total, tuple(taken)


def whole_buckets(arrivals: Sequence[float], unit: float, count: int) -> Table:
    """Return how many more of `count` buckets of `unit` units are complete at each arrival; at the last, all others."""
    found, seen, whole = np.zeros(len(arrivals), dtype=np.int64), 0.0, 0
    for i, units in enumerate(arrivals):
        seen += units
        now = count if i == len(arrivals) - 1 or not count else min(int(seen / unit + 1e-9), count)
        found[i], whole = now - whole, now
    return found
