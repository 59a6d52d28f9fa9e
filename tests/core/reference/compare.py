"""The differences between a plan of the real scheduler and the reference."""

from __future__ import annotations

from tests.core.reference.plan import Said, by_node
from tests.core.reference.scheduler import Reference

from kant.model.decision import Expire, Plan, Preempt, Reject, Start


def decisions_of(plan: Plan) -> list[Said]:
    """The decisions of a plan in the form of the reference, without holds and what the reference does not model."""
    said: list[Said] = []
    for decision in plan.decisions:
        if isinstance(decision, Start):
            said.append(("start", decision.job, by_node(decision.allocation.tolist())))
        elif isinstance(decision, Preempt):
            said.append(("preempt", decision.job, decision.moved))
        elif isinstance(decision, Expire):
            said.append(("expire", decision.job, ""))
        elif isinstance(decision, Reject):
            said.append(("reject", decision.job, ""))
    return said


def compare(reference: Reference, plan: Plan, own_places: bool = True) -> str:
    """The difference between a plan and the decisions of the reference at the same time; empty if there is none.

    Without `own_places` jobs of the reference are placed as in the plan.
    """
    starts = {decision.job: decision.allocation.tolist() for decision in plan.decisions if isinstance(decision, Start)}
    expected, said = reference.decide(plan.time, None if own_places else starts), decisions_of(plan)
    if said == expected:
        return ""
    at = next(
        (at for at, (one, other) in enumerate(zip(said, expected, strict=False)) if one != other),
        min(len(said), len(expected)),
    )
    return f"at {plan.time}, decision {at}: {said[at : at + 3]}, expected {expected[at : at + 3]}"
