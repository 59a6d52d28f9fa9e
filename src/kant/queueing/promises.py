"""Promises and preemption: whoever takes a place by right may not take one that is promised to his equals."""

from __future__ import annotations

from kant.cluster.columns import J_PRIORITY
from kant.cluster.elastic import without
from kant.model.placement import PODS, Allocation
from kant.model.units import FOREVER
from kant.queueing.resizing import end_with
from kant.queueing.turn import Turn
from kant.queueing.victims_proof import Candidate


def keeps_promises(turn: Turn, row: int, victims: list[Candidate], allocation: Allocation) -> bool:
    """Whether all that is promised to jobs of no lower priority still holds if `row` starts in place of `victims`.

    An elastic gang that shrinks runs on with its floor, and for longer.
    """
    forecast, jobs = turn.forecast, turn.state.jobs
    if forecast is None:
        return True
    timeline = forecast.timeline
    taken = [(who, timeline.allocation_of(who), timeline.start_of(who), timeline.expected_end(who))
             for who in (victim.row for victim in victims) if who in timeline]  # fmt: skip
    for who, *_ in taken:
        timeline.remove(who)
    stay = [(who.row, without(turn.state.running[who.row], who.allocation)) for who in victims if who.spare]
    for who, rest in stay:
        timeline.add(who, rest, turn.now, end_with(turn, who, int(rest[:, PODS].sum())))
    end = min(turn.now + forecast.estimates.duration(turn.state, row), FOREVER)
    timeline.add(row, allocation, turn.now, end)
    promised = [r for r in turn.state.reserved.keys() | turn.promised if r in timeline and r != row]
    kept = all(timeline.holds(r) for r in promised if jobs[r, J_PRIORITY] >= jobs[row, J_PRIORITY])
    timeline.remove(row)
    for who, _ in stay:
        timeline.remove(who)
    for who, held, start, until in taken:
        timeline.add(who, held, start, until)
    return kept
