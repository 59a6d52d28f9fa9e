"""Should a waiting gang wait for one topology domain? Compares its earliest start anywhere with that in one domain."""

from __future__ import annotations

import msgspec

from kant.cluster.columns import J_STATUS
from kant.insight.diagnosis import Diagnosis
from kant.insight.start_plan import StartPlan, kept_with
from kant.model.decision import NoFit, Reserved
from kant.model.job import LEVELS, Level
from kant.model.status import JobStatus
from kant.model.units import FOREVER
from kant.placement.cost.slowdown import T_NODES, Slowdowns
from kant.placement.cost.wait_or_place import Choice, wait_or_place
from kant.scheduler.cycle import Scheduler


def level_of(diagnosis: Diagnosis, slowdowns: Slowdowns, row: int) -> Level:
    """Return the lowest topology level above the node of which one domain, if empty, would hold the gang.

    Returns "" if there is no choice: one node could hold the gang, the gang requires a level, or no domain is large
    enough.
    """
    state, job = diagnosis.state, diagnosis.state.live[row]
    shape = state.shape_of(row)
    if shape.pods == 1 or shape.required or slowdowns.best(shape.index)[T_NODES] <= 1:
        return ""
    for level in LEVELS[1:]:
        near = state.shapes.of(msgspec.structs.replace(job, within=level, within_required=True))
        if diagnosis.placer.never_fits(near) is None:
            return level
    return ""


def domain_choice(plan: StartPlan, slowdowns: Slowdowns, row: int) -> Choice | None:
    """Return a waiting job's choice between an early start and one domain, given the jobs planned in `plan`.

    None if the job has no choice, or its run time is unknown.
    """
    diagnosis, state = plan.diagnosis, plan.state
    assert state.jobs[row, J_STATUS] == JobStatus.PENDING
    work = plan.estimates.duration(state, row)
    level = level_of(diagnosis, slowdowns, row) if work < FOREVER else ""
    if not level:
        return None
    held = plan.calendar
    own = (held.allocation_of(row), held.start_of(row), held.expected_end(row)) if row in held else None
    if own is not None:
        held.remove(row)
    found = wait_or_place(held, slowdowns, state.live[row], level, work, diagnosis.now)
    if own is not None:
        held.add(row, *own)
    return found


MOST = 20
"""Maximum number of gangs in `domain_choices`, in the profile's order. Each costs at least two calendar searches."""


def domain_choices(scheduler: Scheduler, now: int | None = None, only: str = "") -> dict[str, Choice]:
    """Return for each waiting gang, or only for the job `only`, whether to start early anywhere or later in one domain.

    Jobs before a gang in the profile's order are planned first. Only gangs that lack nothing but free resources are
    covered. The scheduler is not affected.
    """
    diagnosis = Diagnosis(scheduler, now)
    state, cycle, slowdowns = diagnosis.state, diagnosis.cycle, Slowdowns(diagnosis.state)
    rows = cycle.waiting_rows()
    found: dict[str, Choice] = {}
    if only and not _may_choose(diagnosis, slowdowns, state.rows[only]):
        return found
    plan = StartPlan(diagnosis, kept_with(scheduler.profile.estimates, 90))
    for row in rows[cycle.ranking(rows)].tolist() if len(rows) else ():
        job = state.ids[row]
        if (not only or job == only) and _may_choose(plan.diagnosis, slowdowns, row):
            either = domain_choice(plan, slowdowns, row)
            if either is not None:
                found[job] = either
        if job == only or len(found) == MOST:
            break
        plan.lay_out([row])
    return found


def _may_choose(diagnosis: Diagnosis, slowdowns: Slowdowns, row: int) -> bool:
    return bool(level_of(diagnosis, slowdowns, row)) and isinstance(diagnosis.why(row), NoFit | Reserved | None)
