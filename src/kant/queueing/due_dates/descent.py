"""MDD-VND: the best rule's sequence, improved by variable neighbourhood descent.

N. Mladenovic and P. Hansen, Variable neighborhood search, Computers & Operations Research 24, 1997. Each neighbourhood
is searched completely and its best move is made; then the search starts again with the first one. The descent ends when
no neighbourhood has a better sequence. No random numbers are used.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once, inlined
from kant.queueing.due_dates.challengers import augmented_mddc, mddc
from kant.queueing.due_dates.rules import mdd_sequence, total_tardiness

STEPS = 1000
"""The maximum number of moves in one descent."""

BLOCK = 10
"""The maximum number of jobs in the shorter of two swapped blocks: longer blocks cost time and hardly ever help."""


@inlined
def tardiness_of(p: Table, d: Table, sequence: Table, low: int, high: int, time: int, limit: int) -> tuple[int, int]:
    """Return the end and ΣT of the jobs at low … high - 1 if run from `time`; stop early once ΣT reaches `limit`."""
    total = 0
    for k in range(low, high):
        job = sequence[k]
        time += p[job]
        total += max(time - d[job], 0)
        if total >= limit:
            break
    return time, total


@compiled_at_once
def best_swap(p: Table, d: Table, sequence: Table, start: int) -> tuple[int, int, int]:
    """Return (gain, i, j) of the best swap of the jobs at positions i < j; gain 0 if no swap is better."""
    n = sequence.shape[0]
    best = (0, 0, 0)
    before = start
    for i in range(n):
        stays, time = 0, before
        for j in range(i, n):
            first, last = sequence[i], sequence[j]
            time += p[last]
            stays += max(time - d[last], 0)  # the tardiness of positions i … j without the swap
            if j == i:
                continue
            limit = stays - best[0]
            end, moved = tardiness_of(p, d, sequence, i + 1, j, before + p[last], limit)
            moved += max(before + p[last] - d[last], 0)
            if moved < limit:
                moved += max(end + p[first] - d[first], 0)
                if moved < limit:
                    best = (stays - moved, i, j)
        before += p[sequence[i]]
    return best


@compiled_at_once
def best_block_move(
    p: Table, d: Table, sequence: Table, start: int, shortest: int, longest: int
) -> tuple[int, int, int, int]:
    """Return (gain, i, j, k) of the best swap of the adjacent blocks i … j - 1 and j … k - 1; gain 0 for none.

    The shorter block has `shortest` to `longest` jobs; with one job the move is an insertion.
    """
    n = sequence.shape[0]
    best = (0, 0, 0, 0)
    before = start
    for i in range(n):
        stays, end = 0, before
        for k in range(i + 1, n + 1):
            end += p[sequence[k - 1]]
            stays += max(end - d[sequence[k - 1]], 0)
            if stays <= best[0]:
                continue
            for j in range(i + shortest, k - shortest + 1):
                if min(j - i, k - j) > longest:
                    continue
                limit = stays - best[0]
                time, moved = tardiness_of(p, d, sequence, j, k, before, limit)
                if moved < limit:
                    _, rest = tardiness_of(p, d, sequence, i, j, time, limit - moved)
                    if moved + rest < limit:
                        best = (stays - moved - rest, i, j, k)
        before += p[sequence[i]]
    return best


@compiled_at_once
def descend(p: Table, d: Table, sequence: Table, start: int, steps: int) -> Table:
    """Return `sequence` after at most `steps` moves that improve it; it makes fewer only if no move helps any more."""
    sequence = sequence.copy()
    for _ in range(steps):
        gain, i, j = best_swap(p, d, sequence, start)
        if gain > 0:
            sequence[i], sequence[j] = sequence[j], sequence[i]
            continue
        gain, i, j, k = best_block_move(p, d, sequence, start, 1, 1)
        if gain == 0:
            gain, i, j, k = best_block_move(p, d, sequence, start, 2, BLOCK)
        if gain == 0:
            break
        sequence[i:k] = np.concatenate((sequence[j:k], sequence[i:j]))
    return sequence


@compiled_at_once
def best_of_the_rules(p: Table, d: Table, start: int) -> Table:
    """Return the sequence of MDD, MDDC or augmented MDDC with the smallest ΣT; the first of them on a tie."""
    best = mdd_sequence(p, d, start)
    for rival in (mddc(p, d, start), augmented_mddc(p, d, start)):
        if total_tardiness(p, d, rival, start) < total_tardiness(p, d, best, start):
            best = rival
    return best


@compiled_at_once
def mdd_vnd(p: Table, d: Table, start: int) -> Table:
    """Return the best rule's sequence after the descent: O(n^3) for each of at most `STEPS` moves."""
    return descend(p, d, best_of_the_rules(p, d, start), start, STEPS)
