"""The queue as people read it: who waits, in which order, and why."""

from __future__ import annotations

from collections.abc import Sequence

from kant.insight.diagnosis import Diagnosis
from kant.model.decision import Reason
from kant.scheduler.cycle import Scheduler


def waiting_order(scheduler: Scheduler, now: int | None = None) -> list[str]:
    """The jobs that wait, in the order of the profile at `now`, first the one that is tried first."""
    if not scheduler.state.pending:
        return []
    cycle = Diagnosis(scheduler, now).cycle
    rows = cycle.waiting_rows()
    return [scheduler.state.ids[row] for row in rows[cycle.ranking(rows)].tolist()]


def waiting_reasons(scheduler: Scheduler, now: int | None, jobs: Sequence[str]) -> list[Reason | None]:
    """The one reason of each of these jobs, which wait; None where nothing keeps the next cycle from starting it.

    Raises StateError for a job that does not wait.
    """
    if not jobs:
        return []
    diagnosis = Diagnosis(scheduler, now)
    return [diagnosis.why(diagnosis.row(job)) for job in jobs]
