"""The jobs that a plan leaves blocked, and which of them wait for pods that the plan starts."""

from __future__ import annotations

from collections.abc import Sequence

from kant.cluster.columns import J_SHAPE
from kant.model.decision import Start
from kant.queueing.cycle_plan import CyclePlan


def blocked(cycle: CyclePlan) -> Sequence[tuple[int, ...]]:
    """Return the first waiting job of each bucket; without buckets, all waiting jobs that the plan does not start.

    Each tuple begins with the row of the job and the index of its shape; more elements may follow.
    """
    if cycle.pending.bucket_of is not None:
        return cycle.pending.heads()
    started = {cycle.state.rows[decision.job] for decision in cycle.plan.decisions if isinstance(decision, Start)}
    rows = [row for row in cycle.waiting_rows().tolist() if row not in started]
    return list(zip(rows, cycle.state.jobs[rows, J_SHAPE].tolist(), strict=True))


def await_pods(cycle: CyclePlan) -> None:
    """Ask for a cycle right after this plan if it starts pods of a class for which a blocked job waits.

    A job waits for a class of pods if it has an affinity to them, or a spread rule that counts them.
    """
    state, classes = cycle.state, set[str]()
    for each in cycle.plan.decisions:
        if isinstance(each, Start):
            for rules in state.shape_of(state.rows[each.job]).ask.rules:
                classes.update(rules.classes)
    if not classes:
        return
    waiting = [state.shapes.shapes[head[1]] for head in blocked(cycle)]
    needed = [rules for shape in waiting if shape.wide for rules in shape.ask.rules]
    near = {one.pod_class for rules in needed for one in rules.affinity}
    near |= {one.pod_class for rules in needed for one in rules.spread}
    if classes & near:
        cycle.wake_at(cycle.now + 1)
