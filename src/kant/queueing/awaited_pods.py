"""Jobs that wait for pods of others: they need such a pod near them, or one in the domain that has the fewest."""

from __future__ import annotations

from kant.model.decision import Start
from kant.queueing.cycle_plan import CyclePlan


def starts_awaited_pods(cycle: CyclePlan) -> bool:
    """Return whether the plan starts pods of a class for which a blocked job waits."""
    state, classes = cycle.state, set[str]()
    for each in cycle.plan.decisions:
        if isinstance(each, Start):
            for rules in state.shape_of(state.rows[each.job]).ask.rules:
                classes.update(rules.classes)
    if not classes:
        return False
    blocked = [state.shapes.shapes[head[1]] for head in cycle.blocked()]
    needed = [rules for shape in blocked if shape.wide for rules in shape.ask.rules]
    return any(one.pod_class in classes for rules in needed for one in rules.affinity) or any(
        one.pod_class in classes for rules in needed for one in rules.spread
    )
