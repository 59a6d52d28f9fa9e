"""The rule of two choices: which of two machines gets a task, by their last known loads.

Source: Dodoor (arXiv 2510.12889). Callers: the simulation `kant.optimize.dispatch`, which compiles it; the front ends
of a live core (`kant.service.front_end`); and a router of requests (`kant.serving.routers.dodoor.Dodoor`).
"""

from __future__ import annotations

ALPHA = 0.5
"""The weight of durations in the score, as published; the rest is the weight of loads."""


def anti_affinity(asked: float, held: float, total: float) -> float:
    """Return the load score of a task: r L / C^2 for `asked`, `held` and `total` of a resource; 0 for none."""
    return asked * held / (total * total) if total > 0 else 0.0


def share(mine: float, other: float) -> float:
    """Return `mine` as a fraction of the sum of both; 0.5 if both are 0."""
    return mine / (mine + other) if mine + other > 0 else 0.5


def second_is_lighter(loads: tuple[float, float], pending: tuple[float, float], alpha: float) -> bool:
    """Return whether the second of two machines gets the task; on a tie the first does.

    `loads` are their sums of `anti_affinity`; `pending` the durations of their running and waiting tasks, in one unit.
    The score of a machine is (1 - alpha) times its share of the loads plus alpha times its share of the durations.
    """
    return (1 - alpha) * share(loads[0], loads[1]) + alpha * share(pending[0], pending[1]) > 0.5
