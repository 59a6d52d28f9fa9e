"""What a plan writes when an elastic gang changes its size: the decision, the quotas, the shares, the forecast."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kant.cluster.elastic import held_by, without
from kant.model import placement as pl
from kant.model.decision import Expire, Grow, Preempt, Shrink, Start
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.queueing.turn import Turn


def gives_back_after(turn: Turn, start: Start) -> bool:
    """Whether something comes free in the plan only after this start."""
    return any(isinstance(d, Preempt | Shrink | Expire) for d in turn.plan.decisions[_place(turn, start) + 1 :])


def _place(turn: Turn, start: Start) -> int:
    return next(at for at, decision in enumerate(turn.plan.decisions) if decision is start)


def widen(turn: Turn, start: Start, allocation: Allocation) -> None:
    """A start of the plan gets `allocation`, which is more than it had and is taken on the trial.

    Where that may come free only later in the plan, the start comes last.
    """
    row, before, decisions = turn.state.rows[start.job], start.allocation, turn.plan.decisions
    wider, at = replace(start, allocation=allocation), _place(turn, start)
    if gives_back_after(turn, start):
        del decisions[at]
        decisions.append(wider)
    else:
        decisions[at] = wider
    turn.admission.resizes(row, before, -1)
    turn.admission.resizes(row, allocation, 1)
    less, more = held_by(before), held_by(allocation)
    turn.share_out(row, (more[0] - less[0], more[1] - less[1], more[2] - less[2]), 1)
    _forecast(turn, row, allocation)


def grow(turn: Turn, row: int, pieces: Allocation) -> None:
    """A running gang gets `pieces`, which are taken on the trial."""
    turn.plan.decisions.append(Grow(turn.state.ids[row], pieces))
    turn.admission.resizes(row, pieces, 1)
    turn.share_out(row, held_by(pieces), 1)
    _forecast(turn, row, np.concatenate([turn.state.running[row], pieces]))


def shrink(turn: Turn, row: int, pieces: Allocation, by: str, why: str) -> None:
    """A running gang gives `pieces` back for the job `by`; on the trial that is done."""
    turn.plan.decisions.append(Shrink(turn.state.ids[row], pieces, by, why))
    turn.shrinks(row, pieces)
    turn.admission.resizes(row, pieces, -1)
    turn.share_out(row, held_by(pieces), -1)
    _forecast(turn, row, without(turn.state.running[row], pieces))


def _forecast(turn: Turn, row: int, allocation: Allocation) -> None:
    if turn.forecast is not None:
        forecast, timeline = turn.forecast, turn.forecast.timeline
        end = end_with(turn, row, int(allocation[:, pl.PODS].sum()))
        if row in timeline:  # with fewer pods it leaves some to others now, with more all of them sooner
            fewer = bool(allocation[:, pl.PODS].sum() < timeline.allocation_of(row)[:, pl.PODS].sum())
            forecast.opened += fewer or end < timeline.expected_end(row)
        forecast.starts(row, allocation, turn.now, end)


def end_with(turn: Turn, row: int, pods: int) -> int:
    """When a gang is expected to end if it goes on with so many pods from now on; FOREVER where nobody knows."""
    state, forecast = turn.state, turn.forecast
    assert forecast is not None
    if row not in state.running or row in turn.stopped:
        return min(turn.now + forecast.estimates.duration(state, row, pods), FOREVER)
    held = state.elastic[row].pods
    left = forecast.estimates.end(state, row, turn.now) - turn.now
    return min(turn.now + -(-left * held // pods), FOREVER)
