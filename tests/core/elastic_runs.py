"""Random jobs with elastic gangs, and what must hold of a plan with them, for the tests beside it."""

from __future__ import annotations

import msgspec
import numpy as np
from tests.core.tenant_runs import holding, keys_of, naive_quotas

from kant.cluster.elastic import without
from kant.model.decision import Expire, Grow, Plan, Preempt, Shrink, Start
from kant.model.event import JobSubmitted
from kant.model.job import Job
from kant.testing import Harness


def made_elastic(job: Job, draw: np.random.Generator) -> Job:
    """The job with a floor for each of its groups; some stay as they are, and those that may not be elastic."""
    groups = tuple(
        msgspec.structs.replace(group, count=2 * group.count, floor=int(draw.integers(0, group.count + 1)))
        for group in job.groups
    )
    told_apart = len({group.demand.gpus for group in groups}) == len(groups)
    plain = not (job.affinity_group or job.apart) and not any(group.within or group.demand.profile for group in groups)
    return msgspec.structs.replace(job, groups=groups) if told_apart and plain and draw.integers(3) else job


def elastic_arrivals(draw: np.random.Generator, coming: list[JobSubmitted]) -> list[JobSubmitted]:
    """The same submissions, two thirds of them of elastic gangs."""
    return [msgspec.structs.replace(event, job=made_elastic(event.job, draw)) for event in coming]


def check_plan(harness: Harness, plan: Plan) -> tuple[int, int]:
    """Each decision could be carried out at its place in the plan, within the quotas. Returns how many grow, shrink."""
    state, naive = harness.state, naive_quotas(harness)
    keys, held, grown, shrunk = keys_of(naive), dict(state.running), 0, 0

    def count(job: str, sign: int) -> None:
        row = state.rows[job]
        if state.live[row].queue in naive.queues:
            queue, user, amounts = entry = holding(harness, state.live[row], held[row], keys)
            if sign < 0:
                naive.held.remove(entry)
            else:
                if plan_adds:
                    assert naive.fits(queue, user, amounts), f"{job} is beyond the quota of {queue} at {plan.time}"
                naive.held.append(entry)

    for decision in plan.decisions:
        plan_adds = isinstance(decision, Start | Grow)
        if isinstance(decision, Preempt | Expire):
            count(decision.job, -1)
            del held[state.rows[decision.job]]
        elif isinstance(decision, Start):
            held[state.rows[decision.job]] = decision.allocation
            count(decision.job, 1)
        elif isinstance(decision, Grow | Shrink):
            row = state.rows[decision.job]
            assert row in state.elastic and len(decision.allocation)
            count(decision.job, -1)
            if isinstance(decision, Grow):
                held[row] = np.concatenate([held[row], decision.allocation])
                grown += 1
            else:
                held[row] = without(held[row], decision.allocation)
                shrunk += 1
            count(decision.job, 1)
    return grown, shrunk
