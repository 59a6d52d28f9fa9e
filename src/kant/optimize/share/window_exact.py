"""The window program for CP-SAT: an integer for each job, and lines above the concave utility."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kant.optimize.solvers import cp_sat, deterministic
from kant.queueing.window import Window

UNITS = 10**6
"""The resolution of the objective: units in the gain of the best single round of a job."""
PARTS = 1000
"""Parts of a round in which the remaining time of the longest job is counted."""


def best_counts(window: Window, begin: Sequence[int], limit: float) -> list[int]:
    """Counts at least as good as `begin`, after at most `limit` deterministic seconds.

    Raises InputError if CP-SAT is not installed.
    """
    cp_model = cp_sat()
    model: Any = cp_model.CpModel()
    entries = window.entries
    scale = len(entries) * window.rounds
    counts, gains, most = [], [], []
    for i, entry in enumerate(entries):
        top = entry.most(window.rounds)
        counts.append(model.new_int_var(0, top, f"n{i}"))
        most.append(top)
    # Utilities at whole rounds suffice; their steps shrink, so lines through neighbours lie above.
    steps = [
        [entry.weight * (entry.utility(n + 1) - entry.utility(n)) for n in range(top)]
        for entry, top in zip(entries, most, strict=True)
    ]
    unit = max((max(each) for each in steps), default=0.0) / UNITS or 1.0
    for i, each in enumerate(steps):
        whole = [round(step / unit) for step in each]
        gains.append(model.new_int_var(0, sum(whole), f"u{i}"))
        reached, last = 0, None
        for n, step in enumerate(whole):
            if step != last:
                model.add(gains[i] <= reached + step * (counts[i] - n))
            reached, last = reached + step, step
        model.add(gains[i] <= reached)
    price = round(window.price * scale / PARTS / unit)
    lengths = [math.ceil(entry.left * PARTS) for entry in entries]
    longest = model.new_int_var(0, max(lengths), "longest")
    for count, length in zip(counts, lengths, strict=True):
        model.add(longest >= length - PARTS * count)
    used = sum(entry.gpus * count for entry, count in zip(entries, counts, strict=True))
    model.add(used <= window.gpus * window.rounds)
    model.maximize(sum(gains) - price * longest)
    for variable, count in zip(counts, begin, strict=True):
        model.add_hint(variable, count)
    solver = deterministic(limit)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(begin)
    found = [solver.value(count) for count in counts]
    return found if window.value(found) > window.value(begin) else list(begin)
