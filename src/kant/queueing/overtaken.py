"""What a head that has waited too long may do: stop jobs that overtook it. Kant's backfill, which needs no estimate."""

from __future__ import annotations

from kant.cluster.columns import J_PREEMPTIBLE, J_PRIORITY, J_SINCE, J_STARTED, J_SUBMIT
from kant.cluster.shapes import Shape
from kant.model.placement import Allocation
from kant.queueing.preemption import candidate, running_rivals, stop
from kant.queueing.turn import Turn
from kant.queueing.victims import choose

UNLIMITED = 1 << 60


def overtakers(turn: Turn, row: int, shape: Shape) -> list[int]:
    """Preemptible jobs that started while `row` waited and stand behind it by priority and submission.

    This order does not change, and who started before the head came is never touched: so none of them can do the
    same to the head later on (docs/design/0009-no-two-rounds.md).
    """
    jobs = turn.state.jobs
    rivals = running_rivals(turn, shape)
    own = (-int(jobs[row, J_PRIORITY]), int(jobs[row, J_SUBMIT]), row)
    since = int(jobs[row, J_SINCE])
    return [
        other
        for other in rivals
        if jobs[other, J_PREEMPTIBLE]
        and jobs[other, J_STARTED] >= since
        and (-int(jobs[other, J_PRIORITY]), int(jobs[other, J_SUBMIT]), other) > own
    ]


def stop_overtakers(turn: Turn, row: int, shape: Shape) -> Allocation | None:
    """Seat the head in place of as few of those as it takes, if that is proven to be enough; None where it is not."""
    for option in turn.admission.options(row, shape):
        if turn.admission.shortage(row, option) is not None:
            continue
        jobs = turn.state.jobs
        found = [candidate(turn, other, (int(jobs[other, J_PRIORITY]),)) for other in overtakers(turn, row, option)]
        chosen = choose(turn.placer, option, row, found, UNLIMITED) if found else None
        if chosen is not None:
            victims, allocation = chosen
            for victim in victims:
                stop(turn, victim.row, row, "backfill")
            return allocation
    return None
