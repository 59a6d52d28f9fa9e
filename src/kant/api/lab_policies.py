"""The policies of kant-lab: of the serving engine and router, of workflows, of short tasks, and the planners."""

from __future__ import annotations

from kant.api.catalogue import PolicyEntry, of_object
from kant.optimize.catalogue import OPTIMISERS
from kant.optimize.dispatch.dispatchers import DISPATCHERS
from kant.optimize.workflow.policies import POLICIES as WORKFLOW_RULES
from kant.serving.policies import POLICIES
from kant.serving.routers import ROUTERS


def entries() -> list[PolicyEntry]:
    """Return all entries, kind by kind."""
    return [
        *(of_object("engine", name, make()) for name, make in POLICIES.items()),
        *(of_object("router", name, make()) for name, make in ROUTERS.items()),
        *(of_object("workflow", name, rule) for name, rule in WORKFLOW_RULES.items()),
        *(PolicyEntry("dispatcher", name, each.about, each.source, each.tags) for name, each in DISPATCHERS.items()),
        *(
            PolicyEntry("optimiser", plan.name, f"{plan.about} `{plan.command}`", plan.source, plan.tags)
            for plan in OPTIMISERS
        ),
    ]
