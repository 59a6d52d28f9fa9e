"""Rejection: a job that can never start is rejected at once, and blocks no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.cluster.columns import J_FAILURES, J_SHAPE, J_STARTED
from kant.model.decision import Reason
from kant.queueing.requeue import retries_used

if TYPE_CHECKING:
    from kant.queueing.cycle_plan import CyclePlan


def reject_impossible(cycle: CyclePlan) -> None:
    """Reject the newly arrived jobs that can never start."""
    pending = cycle.pending
    for row in pending.arrived:
        never = never_starts(cycle, row)
        if never is not None:
            cycle.reject(row, never)
            pending.leave(row)
    pending.arrived.clear()


def never_starts(cycle: CyclePlan, row: int) -> Reason | None:
    """Return why a job can never start on this cluster; None if it could."""
    state, first = cycle.state, None
    job = state.jobs[row]
    if not (cycle.limited or job[J_FAILURES] or row in state.unwanted):
        return cycle.placer.never_fits(state.shapes.shapes[job[J_SHAPE]])
    failures = int(job[J_FAILURES])
    used = retries_used(state, row, failures) if failures else None
    unwanted = used or cycle.admission.unwanted(row)
    if unwanted is not None:
        return unwanted
    for option in cycle.admission.options(row, state.shape_of(row)):
        never = cycle.admission.never(row, option) or cycle.placer.never_fits(option)
        if never is None:
            return None
        first = first or never
    return first


def await_rejection(cycle: CyclePlan, row: int) -> None:
    """Ask for a cycle right after a plan that stops a job which can never start again.

    Quotas or nodes have changed since the job started.
    """
    state = cycle.state
    changed = state.asked_anew > 0 or state.quota_usage.changed_at >= state.jobs.item(row, J_STARTED)
    if changed and never_starts(cycle, row) is not None:
        cycle.wake_at(cycle.now + 1)
