"""Completes partially bound gangs, before anything else is decided.

A gang is partially bound if its driver is killed between two bindings, or a binding is refused for good. The driver
reports what is bound (`JobFound`) and asks for this plan. Either the plan starts the gang with what it holds and places
the missing pods nearby, or the driver releases what is bound. In both cases the next cycle finds no such gang.
"""

from __future__ import annotations

from kant.model.decision import Plan
from kant.queueing.node_replacement import complete_bound
from kant.scheduler.cycle import Scheduler


def complete_partial_gangs(scheduler: Scheduler, now: int) -> Plan:
    """Return the plan at `now` for the partially bound gangs, and for no other job."""
    cycle = scheduler.begin(now)
    cycle.plan.mending = True
    complete_bound(cycle)
    return cycle.plan


def decide_again(scheduler: Scheduler, plan: Plan) -> Plan:
    """Repeat the decision of a recorded plan on the present state."""
    if plan.mending:
        return complete_partial_gangs(scheduler, plan.time)
    if not plan.proposed:
        return scheduler.cycle(plan.time)
    from kant.scheduler.proposals import carry_out_proposal  # loaded only for such plans

    return carry_out_proposal(scheduler, plan.time)
