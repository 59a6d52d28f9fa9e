"""`check_policy` finds what is wrong with policies that break a rule, and says which."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from kant.cluster.columns import FREE, J_ESTIMATE, J_SUBMIT, POOL, Table
from kant.compiled import inlined
from kant.model.decision import NoFit
from kant.model.taxonomy import Tags, tagged
from kant.placement.policies.best_fit import BestFit
from kant.placement.policy import NodePolicy
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.discipline import Discipline
from kant.queueing.disciplines.strict import Strict
from kant.queueing.order import Order
from kant.testing import NonconformanceError, check_policy


class NoSource(Order, frozen=True, tag="no-source"):
    """An order without a source."""

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return jobs[rows, J_SUBMIT]


class NoObjective(Order, frozen=True, tag="no-objective"):
    """An order that says nothing of its objective."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Order.tags, knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return jobs[rows, J_SUBMIT]


class Invents(NoObjective, frozen=True, tag="invents"):
    """An order with a value that the taxonomy does not have."""

    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct happiness", knowledge="none")


class Ageing(Order, frozen=True, tag="ageing"):
    """Keys that change while a job waits."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="none", knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return jobs[rows, J_ESTIMATE] - (now - jobs[rows, J_SUBMIT]) // 2


class Ranks(Order, frozen=True, tag="ranks"):
    """Keys that depend on the other jobs."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="none", knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return np.argsort(np.argsort(jobs[rows, J_ESTIMATE], kind="stable"))


class Undefined(Order, frozen=True, tag="undefined"):
    """Keys that nothing compares with."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="none", knowledge="none")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        return np.where(jobs[rows, J_ESTIMATE] < 0, np.nan, 1.0)


@inlined
def pick_lowest(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return int((1 << demands[d, 0]) - 1)


class Grabs(NodePolicy, frozen=True, tag="grabs"):
    """Takes the first devices whether they are free or not."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="none", resources="1-d")
    score = staticmethod(BestFit.score)
    pick = staticmethod(pick_lowest)


@inlined
def salted(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    others = 0
    for other in range(table.shape[0]):
        others += table[other, FREE] * (1 + table[other, POOL])
    return int((others >> 3) + node * 37) % 101


class LooksAround(NodePolicy, frozen=True, tag="looks-around"):
    """A score that depends on other nodes, so that a score that was kept is wrong."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="none", resources="1-d")
    score = staticmethod(salted)


class Mumbles(BestFit, frozen=True, tag="mumbles"):
    """Terms that leave out what the score depends on."""

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> dict[str, float]:
        return {"pool": int(table[node, POOL])}


class Forgets(Discipline, frozen=True, tag="forgets"):
    """Takes jobs from the queue without starting them."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="none", knowledge="none")

    def run(self, cycle: CyclePlan) -> None:
        for row, shape, bucket in cycle.pending.walk():
            result = cycle.place(row, shape)
            cycle.pending.took(bucket)
            if not isinstance(result, NoFit) and row % 5:
                cycle.start(row, result)


class Twice(Discipline, frozen=True, tag="twice"):
    """Starts a job twice."""

    source: ClassVar[str] = "test"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="none", knowledge="none")

    def run(self, cycle: CyclePlan) -> None:
        for row, shape, bucket in cycle.pending.walk():
            result = cycle.place(row, shape)
            if isinstance(result, NoFit):
                cycle.pending.sleep(bucket, shape)
            else:
                cycle.start(row, result)
                cycle.start(row, result)
                cycle.pending.took(bucket)


class Alternates(Strict, frozen=True, tag="alternates"):
    """Says of the first shapes that nobody passes, and has a lane for each of the others."""

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return (queue,) if shape < 3 else (queue, shape)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (NoSource(), "the source of its idea"),
        (NoObjective(), "objective has no value of none, utilisation"),
        (Invents(), "objective=happiness is not one of none, utilisation"),
        (Ageing(), "must not change while it waits"),
        (Ranks(), "many jobs must be those of each alone"),
        (Undefined(), "must be comparable"),
        (Grabs(), "only free devices"),
        (LooksAround(), "must decide as a new one"),
        (Mumbles(), "must have one score"),
        (Forgets(), "a run must end when every job has left"),
        (Twice(), "must start once"),
        (Alternates(), "in its queue"),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, str) else "",
)
def test_a_policy_that_breaks_a_rule_is_found_out(policy: Any, rule: str) -> None:
    with pytest.raises(NonconformanceError, match=rule):
        check_policy(policy, rounds=20)
