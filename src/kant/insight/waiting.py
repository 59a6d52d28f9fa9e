"""The queue for people: which jobs wait, in which order, and why."""

from __future__ import annotations

from collections.abc import Sequence

from kant.insight.diagnosis import Diagnosis
from kant.model.decision import Reason
from kant.scheduler.cycle import Scheduler


def waiting_order(scheduler: Scheduler, now: int | None = None) -> list[str]:
    """Return the waiting jobs in the order of the profile at `now`, the next to be tried first."""
    if not scheduler.state.pending:
        return []
    cycle = Diagnosis(scheduler, now).cycle
    rows = cycle.waiting_rows()
    return [scheduler.state.ids[row] for row in rows[cycle.ranking(rows)].tolist()]


def waiting_reasons(scheduler: Scheduler, now: int | None, jobs: Sequence[str]) -> list[Reason | None]:
    """Return the one reason of each of these waiting jobs; None if nothing keeps the next cycle from starting it.

    Raises StateError for a job that does not wait.
    """
    if not jobs:
        return []
    diagnosis = Diagnosis(scheduler, now)
    return [diagnosis.why(diagnosis.row(job)) for job in jobs]
