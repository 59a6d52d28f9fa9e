"""Wait or place, for a waiting gang: where it could start soonest, and when in one domain of the fabric."""

from __future__ import annotations

import msgspec

from kant.cluster.columns import J_STATUS
from kant.model.decision import NoFit, Reserved
from kant.model.job import LEVELS, Level
from kant.model.status import JobStatus
from kant.model.units import FOREVER
from kant.placement.spans import T_NODES, Slowdowns
from kant.placement.wait_or_place import Choice, wait_or_place
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import StartPlan, kept_with
from kant.scheduler.inquiry import Inquiry
from kant.scheduler.steps import Steps, at_once


def level_of(inquiry: Inquiry, slowdowns: Slowdowns, row: int) -> Level:
    """The narrowest level above the node of which one domain of the empty cluster holds the job's gang.

    Empty where there is nothing to choose: for a gang that one node could hold, that requires a level, or that never
    fits in one domain of any.
    """
    state, job = inquiry.state, inquiry.state.live[row]
    shape = state.shape_of(row)
    if shape.pods == 1 or shape.required or slowdowns.best(shape.index)[T_NODES] <= 1:
        return ""
    for level in LEVELS[1:]:
        near = state.shapes.of(msgspec.structs.replace(job, within=level, within_required=True))
        if inquiry.placer.never_fits(near) is None:
            return level
    return ""


def choice(plan: StartPlan, slowdowns: Slowdowns, row: int) -> Choice | None:
    """What a waiting job could have beside what is in the plan already: who runs, is promised a place, or goes before.

    None where it has no choice, or nobody knows how long it runs.
    """
    inquiry, state = plan.inquiry, plan.state
    assert state.jobs[row, J_STATUS] == JobStatus.PENDING
    work = plan.estimates.duration(state, row)
    level = level_of(inquiry, slowdowns, row) if work < FOREVER else ""
    if not level:
        return None
    held = plan.timeline
    own = (held.allocation_of(row), held.start_of(row), held.expected_end(row)) if row in held else None
    if own is not None:
        held.remove(row)
    found = wait_or_place(held, slowdowns, state.live[row], level, work, inquiry.now)
    if own is not None:
        held.add(row, *own)
    return found


MOST = 20
"""Gangs of which `choices` tells at once, the first in order: each costs two searches in time, or more."""


def choices(scheduler: Scheduler, now: int | None = None, only: str = "") -> dict[str, Choice]:
    """What the waiting gangs (or job `only`) could have beside those before them, in the order of the profile.

    Only gangs that lack nothing but a place: neither a quota, nor their turn. Asking changes nothing.
    """
    return at_once(choosing(scheduler, now, only))


def choosing(scheduler: Scheduler, now: int | None = None, only: str = "") -> Steps[dict[str, Choice]]:
    """The same, in steps."""
    inquiry = Inquiry(scheduler, now)
    state, turn, slowdowns = inquiry.state, inquiry.turn, Slowdowns(inquiry.state)
    rows = turn.pending()
    found: dict[str, Choice] = {}
    if only and not _may_choose(inquiry, slowdowns, state.rows[only]):
        return found
    plan = yield from StartPlan.beginning(inquiry, kept_with(scheduler.profile.estimates, 90))
    for row in rows[turn.ranking(rows)].tolist() if len(rows) else ():
        job = state.ids[row]
        if row not in state.pending:
            continue
        if (not only or job == only) and _may_choose(plan.inquiry, slowdowns, row):
            either = choice(plan, slowdowns, row)
            if either is not None:
                found[job] = either
        if job == only or len(found) == MOST:
            break
        yield from plan.laying_out([row])
    return found


def _may_choose(inquiry: Inquiry, slowdowns: Slowdowns, row: int) -> bool:
    return bool(level_of(inquiry, slowdowns, row)) and isinstance(inquiry.why(row), NoFit | Reserved | None)
