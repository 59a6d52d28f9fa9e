"""Promises and preemption: whoever takes a place by right may not take one that is promised to his equals."""

from __future__ import annotations

from kant.cluster.columns import J_PRIORITY
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.queueing.turn import Turn


def keeps_promises(turn: Turn, row: int, victims: list[int], allocation: Allocation) -> bool:
    """Whether all that is promised to jobs of no lower priority still holds if `row` starts in place of `victims`."""
    forecast, jobs = turn.forecast, turn.state.jobs
    if forecast is None:
        return True
    timeline = forecast.timeline
    taken = [(who, timeline.allocation_of(who), timeline.start_of(who), timeline.expected_end(who))
             for who in victims if who in timeline]  # fmt: skip
    for who, *_ in taken:
        timeline.remove(who)
    end = min(turn.now + forecast.estimates.duration(turn.state, row), FOREVER)
    timeline.add(row, allocation, turn.now, end)
    promised = [r for r in turn.state.reserved.keys() | turn.promised if r in timeline and r != row]
    kept = all(timeline.holds(r) for r in promised if jobs[r, J_PRIORITY] >= jobs[row, J_PRIORITY])
    timeline.remove(row)
    for who, held, start, until in taken:
        timeline.add(who, held, start, until)
    return kept
