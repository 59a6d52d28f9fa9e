"""Why is this job waiting? One dominant reason, with the numbers behind it."""

from __future__ import annotations

from kant.model.decision import Behind, NoFit, Reason
from kant.model.errors import Violation
from kant.scheduler.cycle import Scheduler


def why(scheduler: Scheduler, job: str) -> Reason | None:
    """The one reason for which `job` waits; None where nothing keeps the next cycle from starting it.

    First what no time will cure, then the job that blocks its lane, then what is missing now. Asking changes
    nothing. Raises Violation for a job that does not wait.
    """
    state, placer = scheduler.state, scheduler.placer
    row = state.row_of(job)
    if row not in state.pending:
        raise Violation(f"job {job!r} does not wait")
    scheduler.catch_up(state.now)
    shape = state.shape_of(row)
    never = placer.never_fits(shape)
    if never is not None:
        return never
    head = scheduler.waiting.head_before(row)
    if head is not None:
        return Behind(state.ids[head])
    mark = placer.trial.checkpoint()
    result = placer.place(shape, row)
    placer.trial.rollback(mark)
    return result if isinstance(result, NoFit) else None
