"""Reservations and preemption: a preempting job may not take devices reserved for jobs of its priority or above."""

from __future__ import annotations

from kant.cluster.columns import J_PRIORITY
from kant.cluster.elastic import without
from kant.model.placement import PODS, Allocation
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.preemption.candidate import Candidate
from kant.queueing.resizing import end_with


def keeps_reservations(cycle: CyclePlan, row: int, victims: list[Candidate], allocation: Allocation) -> bool:
    """Return whether reservations of the same or a higher priority still hold if `row` starts instead of `victims`.

    An elastic gang that shrinks runs on with its remaining pods, and for longer.
    """
    forecast, jobs = cycle.forecast, cycle.state.jobs
    if forecast is None:
        return True
    calendar = forecast.calendar
    taken = [(who, calendar.allocation_of(who), calendar.start_of(who), calendar.expected_end(who))
             for who in (victim.row for victim in victims) if who in calendar]  # fmt: skip
    for who, *_ in taken:
        calendar.remove(who)
    stay = [(who.row, without(cycle.state.running[who.row], who.allocation)) for who in victims if who.surplus]
    for who, rest in stay:
        calendar.add(who, rest, cycle.now, end_with(cycle, who, int(rest[:, PODS].sum())))
    end = forecast.estimates.end_if_started(cycle.state, row, cycle.now)
    calendar.add(row, allocation, cycle.now, end)
    promised = [r for r in cycle.state.reserved.keys() | cycle.reserved if r in calendar and r != row]
    kept = all(calendar.holds(r) for r in promised if jobs[r, J_PRIORITY] >= jobs[row, J_PRIORITY])
    calendar.remove(row)
    for who, _ in stay:
        calendar.remove(who)
    for who, held, start, until in taken:
        calendar.add(who, held, start, until)
    return kept
