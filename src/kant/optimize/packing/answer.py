"""The answer of `kant pack`: the node of every pod, the steps that lead to this placement, and the certificate
(docs/solvers.md).
"""

from __future__ import annotations

from msgspec import Struct

from kant.model.errors import InputError
from kant.optimize.packing import paper, portfolio
from kant.optimize.packing.certificate import Packing
from kant.optimize.packing.instance import PackingInstance
from kant.optimize.packing.problem import WAITS, Problem
from kant.optimize.packing.steps import PackingStep, ordered

MODELS = {"paper": paper.solve, "portfolio": portfolio.solve}
LONGEST = 3600.0


class PriorityRow(Struct, frozen=True):
    """The pods of one priority: their number, how many run before and after the plan, and how many could run at most.

    The maximum assumes that of every higher priority as many pods run as after the plan.
    """

    priority: int
    pods: int
    before: int
    after: int
    bound: int


class PackingAnswer(Struct, frozen=True):
    """A plan with its certificate.

    `proven`: no plan places more pods, by priority. For the model `paper`: no plan is better in its order, in which few
    moves of a priority count more than pods of lower priorities. `disturbed` pods move or are evicted;
    `disturbed_bound` is a lower bound of this number for plans that place as many pods.
    """

    model: str
    limit_s: float
    spent_s: float
    """Deterministic seconds of the solver."""
    proven: bool
    priorities: tuple[PriorityRow, ...]
    started: int
    moved: int
    evicted: int
    disturbed: int
    disturbed_bound: int
    steps: tuple[PackingStep, ...]
    placements: dict[str, str | None]


def pack(instance: PackingInstance, model: str = "portfolio", limit: float = 1.0) -> PackingAnswer:
    """Place as many pods as possible, by priority; then move or evict as few as possible.

    The solver gets `limit` deterministic seconds. `model` is `portfolio` or `paper`. The answer does not depend on the
    load of the machine. Raises InputError for another model, for a limit out of range, or if OR-Tools is not installed.
    """
    if model not in MODELS:
        raise InputError("--model", " or ".join(MODELS), model)
    if not 0.01 <= limit <= LONGEST:
        raise InputError("--limit", "a time from 10ms to 1h")
    problem = Problem(instance)
    return _answer(problem, MODELS[model](problem, limit), model, limit)


def _answer(problem: Problem, packing: Packing, model: str, limit: float) -> PackingAnswer:
    found = packing.assignment
    before, after = problem.placed(problem.current), problem.placed(found)
    rows = tuple(
        PriorityRow(priority, problem.tier.count(t), before[t], after[t], packing.bounds[t])
        for t, priority in enumerate(problem.priorities)
    )
    moved, evicted = len(problem.moved(found)), len(problem.evicted(found))
    return PackingAnswer(
        model=model,
        limit_s=limit,
        spent_s=round(packing.spent, 6),
        proven=packing.proven,
        priorities=rows,
        started=sum(1 for old, new in zip(problem.current, found, strict=True) if old == WAITS != new),
        moved=moved,
        evicted=evicted,
        disturbed=moved + evicted,
        disturbed_bound=packing.least,
        steps=tuple(ordered(problem, found)),
        placements={
            pod.name: None if node == WAITS else problem.instance.nodes[node].name
            for pod, node in zip(problem.instance.pods, found, strict=True)
        },
    )
