"""Mend: gangs that are bound in part are made whole before anything else is decided.

A driver whose gang was bound in part (it was killed between two bindings, or a binding was refused for good) says what
is bound (`JobFound`) and asks for this. Either the plan starts the gang, on what it holds and on what it lacks, near
it; or the driver takes back what is bound. In both cases the next cycle finds nothing in part.
"""

from __future__ import annotations

from kant.model.decision import Plan
from kant.queueing.repair import complete
from kant.queueing.turn import Turn
from kant.scheduler.cycle import Scheduler


def mend(scheduler: Scheduler, now: int) -> Plan:
    """What to do at `now` about the gangs that hold something already, and about nobody else."""
    scheduler.catch_up(now)
    profile = scheduler.profile
    turn = Turn(
        scheduler.snapshot, profile.order, scheduler.waiting, scheduler.placer, profile.preemption, scheduler.forecast
    )
    turn.plan.mending = True
    complete(turn)
    return turn.plan


def decide(scheduler: Scheduler, plan: Plan) -> Plan:
    """Decide again what a recorded plan has decided, as things stand now."""
    return mend(scheduler, plan.time) if plan.mending else scheduler.cycle(plan.time)
