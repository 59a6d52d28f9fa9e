"""What a plan records when an elastic gang is resized: the decision, the quotas, the shares, the forecast."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kant.cluster.elastic import without
from kant.cluster.quota_usage import charged_by
from kant.model import placement as pl
from kant.model.decision import Expire, Grow, Preempt, Shrink, Start
from kant.model.placement import Allocation
from kant.queueing.cycle_plan import CyclePlan


def gives_back_after(cycle: CyclePlan, start: Start) -> bool:
    """Return whether the plan frees capacity after this start."""
    return any(isinstance(d, Preempt | Shrink | Expire) for d in cycle.plan.decisions[_place(cycle, start) + 1 :])


def _place(cycle: CyclePlan, start: Start) -> int:
    return next(at for at, decision in enumerate(cycle.plan.decisions) if decision is start)


def widen(cycle: CyclePlan, start: Start, allocation: Allocation) -> None:
    """Give a start of the plan the larger `allocation`, which is taken on the trial.

    If the plan frees capacity after the start, the start is moved to the end of the plan.
    """
    row, before, decisions = cycle.state.rows[start.job], start.allocation, cycle.plan.decisions
    wider, at = replace(start, allocation=allocation), _place(cycle, start)
    if gives_back_after(cycle, start):
        del decisions[at]
        decisions.append(wider)
    else:
        decisions[at] = wider
    cycle.admission.resizes(row, before, -1)
    cycle.admission.resizes(row, allocation, 1)
    shape = cycle.state.shape_of(row)
    less, more = charged_by(shape, before), charged_by(shape, allocation)
    cycle.share_out(row, (more[0] - less[0], more[1] - less[1], more[2] - less[2]), 1)
    _forecast(cycle, row, allocation)
    left = _given_up(before, allocation)
    if len(left):
        if cycle.forecast is not None:
            cycle.forecast.opened += 1
        cycle.frees(left)


def _given_up(before: Allocation, after: Allocation) -> Allocation:
    """Return the pieces of `before` on nodes where `after` has fewer pods of their group."""
    pods: dict[tuple[int, int], int] = {}
    for sign, pieces in ((-1, before), (1, after)):
        for node, group, count in pieces[:, [pl.NODE, pl.GROUP, pl.PODS]].tolist():
            pods[node, group] = pods.get((node, group), 0) + sign * count
    where: list[list[int]] = before[:, [pl.NODE, pl.GROUP]].tolist()
    return before[[pods[node, group] < 0 for node, group in where]]


def grow(cycle: CyclePlan, row: int, pieces: Allocation) -> None:
    """Give a running gang the additional `pieces`, which are taken on the trial."""
    cycle.plan.decisions.append(Grow(cycle.state.ids[row], pieces))
    cycle.admission.resizes(row, pieces, 1)
    cycle.share_out(row, charged_by(cycle.state.shape_of(row), pieces), 1)
    _forecast(cycle, row, np.concatenate([cycle.state.running[row], pieces]))


def shrink(cycle: CyclePlan, row: int, pieces: Allocation, by: str, why: str) -> None:
    """Take `pieces` from a running gang for the job `by`; they are already free on the trial."""
    cycle.plan.decisions.append(Shrink(cycle.state.ids[row], pieces, by, why))
    cycle.shrinks(row, pieces)
    cycle.admission.resizes(row, pieces, -1)
    cycle.share_out(row, charged_by(cycle.state.shape_of(row), pieces), -1)
    _forecast(cycle, row, without(cycle.state.running[row], pieces))


def _forecast(cycle: CyclePlan, row: int, allocation: Allocation) -> None:
    if cycle.forecast is not None:
        forecast, calendar = cycle.forecast, cycle.forecast.calendar
        end = end_with(cycle, row, int(allocation[:, pl.PODS].sum()))
        if row in calendar:  # fewer pods free capacity now; with more pods the gang ends sooner
            fewer = bool(allocation[:, pl.PODS].sum() < calendar.allocation_of(row)[:, pl.PODS].sum())
            forecast.opened += fewer or end < calendar.expected_end(row)
        forecast.starts(row, allocation, cycle.now, end)


def end_with(cycle: CyclePlan, row: int, pods: int) -> int:
    """Return when a gang is expected to end with `pods` pods from now on, µs; FOREVER if unknown."""
    state, forecast = cycle.state, cycle.forecast
    assert forecast is not None
    if row not in state.running or row in cycle.stopped:
        return forecast.estimates.end_if_started(state, row, cycle.now, pods)
    return forecast.estimates.end(state, row, cycle.now, pods)
