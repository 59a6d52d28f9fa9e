"""EDDC, MDDC and augmented MDDC: rules that a language model derived from EDD and MDD.

I. O. Cetinkaya, I. E. Buyuktahtakin, P. Shojaee and C. K. Reddy, Discovering Heuristics with Large Language Models
(LLMs) for Mixed-Integer Programs: Single-Machine Scheduling, arXiv 2510.24013, 2025. In the paper `start` is 0.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once
from kant.queueing.due_dates.rules import sorted_by


@compiled_at_once
def eddc(p: Table, d: Table, start: int) -> Table:
    """EDD Challenger: sort by length; then a job passes longer jobs that are due later and end before their due date.

    Each job in turn moves forward while the job before it is due later. The two are swapped if that job ends before its
    due date in the present sequence; the walk continues in either case. O(n^2).
    """
    sequence = sorted_by(p, d)
    ends = np.cumsum(p[sequence]) + start
    for i in range(1, sequence.shape[0]):
        j = i
        while j > 0 and d[sequence[j]] < d[sequence[j - 1]]:
            before, job = sequence[j - 1], sequence[j]
            if d[before] > ends[j - 1]:
                sequence[j - 1], sequence[j] = job, before
                ends[j - 1] += p[job] - p[before]
            j -= 1
    return sequence


@compiled_at_once
def choose_mddc(p: Table, d: Table, waiting: Table, time: int) -> int:
    """Return the index in `waiting` of the job that MDDC takes at `time`."""
    longest, total = 0, 0
    for job in waiting:
        longest = max(longest, p[job])
        total += p[job]
    mean = total / waiting.shape[0]
    best, least = 0, (np.inf, 0, 0, 0)
    for k in range(waiting.shape[0]):
        job = waiting[k]
        score = max(1.1 * p[job] + time, float(d[job]))
        if p[job] > 0:  # a job of no length has r = 0, whatever the divisor
            r = min(1.0, p[job] / (time + longest))
            score = score * (1 + r * r / (1 + r * r)) + p[job] / (time + mean)
        rank = (score, d[job], p[job], job)
        if rank < least:
            best, least = k, rank
    return best


@compiled_at_once
def append_all(p: Table, d: Table, start: int, augmented: bool) -> Table:
    """Return MDDC's sequence. `augmented`: after each append, make the best move of one earlier job to the end."""
    n = p.shape[0]
    waiting = np.arange(n)
    sequence = np.empty(n, dtype=np.int64)
    time = start
    for length in range(1, n + 1):
        left = n - length + 1
        k = choose_mddc(p, d, waiting[:left], time)
        sequence[length - 1] = waiting[k]
        time += p[waiting[k]]
        waiting[k] = waiting[left - 1]
        if augmented:
            move_one_to_end(p, d, sequence[:length], time)
    return sequence


@compiled_at_once
def move_one_to_end(p: Table, d: Table, sequence: Table, end: int) -> None:
    """Move the job that lowers ΣT most to the end of `sequence`, which ends at `end`; no job if none lowers it."""
    best, least = -1, 0
    time = end
    for i in range(sequence.shape[0] - 1, -1, -1):
        job = sequence[i]
        # The jobs behind the moved one end earlier by its length, and it ends last; no others change.
        change = max(end - d[job], 0) - max(time - d[job], 0)
        moved = time
        for k in range(i + 1, sequence.shape[0]):
            moved += p[sequence[k]]
            change += max(moved - p[job] - d[sequence[k]], 0) - max(moved - d[sequence[k]], 0)
        if change < least:
            best, least = i, change
        time -= p[job]
    if best >= 0:
        job = sequence[best]
        sequence[best:-1] = sequence[best + 1 :].copy()
        sequence[-1] = job


@compiled_at_once
def mddc(p: Table, d: Table, start: int) -> Table:
    """MDD Challenger: at time t the job with the smallest u (1 + r^2 / (1 + r^2)) + p / (t + mean) is next, where u =
    max(1.1 p + t, d) and r = min(1, p / (t + longest)). `mean` and `longest` are of the processing times not yet
    sequenced. Times are not negative: the rule divides by them, so it depends on their origin and unit. O(n^2).
    """
    return append_all(p, d, start, False)


@compiled_at_once
def augmented_mddc(p: Table, d: Table, start: int) -> Table:
    """MDDC that after every append moves one job to the end of the partial sequence, if that lowers ΣT. O(n^3)."""
    return append_all(p, d, start, True)
