"""The rule of two choices: which of two machines gets a task, by what somebody last heard of their loads.

It is that of Dodoor (arXiv 2510.12889), in its simulation (`kant.optimize.dispatch`) and before a live core
(`kant.service.front_end`). Both call it; the first compiles it.
"""

from __future__ import annotations


def anti_affinity(asked: float, held: float, total: float) -> float:
    """How much a task that asks for so much of a resource adds to those that hold it: r L / C^2, 0 without any."""
    return asked * held / (total * total) if total > 0 else 0.0


def share(mine: float, other: float) -> float:
    """`mine` of the sum of both; a half where both are nothing."""
    return mine / (mine + other) if mine + other > 0 else 0.5


def second_is_lighter(loads: tuple[float, float], pending: tuple[float, float], alpha: float) -> bool:
    """Whether the second of two machines gets the task: where they are equal, the first does.

    `loads` are their sums of `anti_affinity`, `pending` the durations of what runs or waits there, all in one unit.
    The score of a machine is (1 - alpha) of its share of the loads and alpha of its share of the durations.
    """
    return (1 - alpha) * share(loads[0], loads[1]) + alpha * share(pending[0], pending[1]) > 0.5
