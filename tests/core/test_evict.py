"""Evictions in compiled instants are those that Python decides, search by search and run by run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec import structs
from tests.core.test_advance import NO_QUEUES, PATIENT, PROFILES, assert_decided_alike, at_once

from kant.cluster.columns import J_PRIORITY, Table
from kant.cluster.quota_columns import NO_QUOTAS
from kant.cluster.shapes import Shape
from kant.compiled import as_written
from kant.model.decision import Preempt
from kant.model.placement import Allocation
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import GPU, SECOND
from kant.placement.counted_search import random_numbers
from kant.placement.group_kernel import G_DEMAND, G_PODS, GROUP_WIDTH
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.ports import NotNow
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import Profile
from kant.sim.advancer import Advancer
from kant.sim.blocked import S_MILLI, S_POOL_BITS, SHAPE_WIDTH
from kant.sim.evict import MOVED, Evictions, find_victims
from kant.sim.eviction_columns import EvictionColumns
from kant.sim.happened import H_BEGIN
from kant.workload.workload import Workload, make_workload


def victims_in_columns(
    by: Preemption, cycle: CyclePlan, row: int, shape: Shape
) -> tuple[Table, Table, int, bool] | None:
    """Return what `find_victims` says of a job that a plan tries; None where it is not asked."""
    state, domains = cycle.state, cycle.placer.counted_domains(shape)
    if domains is None or not shape.ask.preempts or not by._may_evict(cycle, row, shape):
        return None
    rules = by.rules(cycle, row, shape)
    if rules.finds(int(by.most * shape.gpu_milli), by.exact) is not None:
        return None
    shapes, groups = np.zeros((1, SHAPE_WIDTH), dtype=np.int64), np.zeros((1, GROUP_WIDTH), dtype=np.int64)
    shapes[0, [S_MILLI, S_POOL_BITS]] = shape.gpu_milli, shape.pool_bits
    groups[0, [G_PODS, G_DEMAND]] = shape.parts[0]
    evictions = Evictions(
        by.exact, by.trials, True, domains[None], random_numbers(len(state.running)), 0, NO_QUOTAS, NO_QUOTAS
    )
    return find_victims(
        cycle.now, 0, rules.claim, rules.running, by.most, evictions, shapes, groups, state.jobs, state.pieces,
        cycle.placer.trial.table, state.shapes.demands,
    )  # fmt: skip


def assert_evicted_alike(workload: Workload, profile: Profile, queues: QueueConfig) -> tuple[list[int], list[int]]:
    """Assert that evictions are decided alike; return whether each victim of compiled instants moved, and how many
    victims each search of Python found.

    Each search is held against that of compiled instants, and all that runs has an end after these have broken off.
    """
    moved, counts = list[int](), list[int]()
    follow, go, free = EvictionColumns.follow, Advancer.go, Preemption.free_capacity

    def note(self: EvictionColumns, evicted: Table, work: Table) -> None:
        moved.extend((evicted[:, H_BEGIN] & MOVED).tolist())
        follow(self, evicted, work)

    def all_end(self: Advancer, arrival: Any, end: int) -> Any:
        found = go(self, arrival, end)
        assert (self.run.execution.speed.ends[[*self.state.running]] >= self.state.now).all()
        return found

    def search_twice(self: Preemption, cycle: CyclePlan, row: int, shape: Shape) -> Allocation | NotNow:
        found, began, lowest = victims_in_columns(self, cycle, row, shape), len(cycle.plan.decisions), cycle.lowest
        made = free(self, cycle, row, shape)
        if found is not None:
            rows, gives, retry_at, proven = found
            stopped = [one for one in cycle.plan.decisions[began:] if isinstance(one, Preempt)]
            assert [one.job for one in stopped] == [cycle.state.ids[victim] for victim in rows.tolist()]
            assert [one.why == "reclaim" for one in stopped] == (gives == 1).tolist()
            if isinstance(made, NotNow):
                assert made == NotNow(retry_at, proven and cycle.state.jobs.item(row, J_PRIORITY) <= lowest)
            counts.append(len(rows))
        return made

    with (
        patch.object(EvictionColumns, "follow", note), patch.object(Advancer, "go", all_end),
        patch.object(Preemption, "free_capacity", search_twice), as_written(),
    ):  # fmt: skip
        assert_decided_alike(workload, profile, queues)
    return moved, counts


@pytest.mark.parametrize(
    ("seed", "most", "exact", "moves", "checkpoint"),
    [
        (8, 4.0, 10, True, -1),
        (8, 1.0, 10, True, 7),
        (114, 1.0, 0, True, 7),
        (118, 4.0, 0, False, 7),
        (10, 4.0, 0, False, 7),
    ],
)
def test_evictions_are_decided_alike(seed: int, most: float, exact: int, moves: bool, checkpoint: int) -> None:
    """Under quotas and three priorities; some are protected, some too large, and some move to other nodes.

    114: no light jobs suffice, and the search would not be exact. 118: one that borrows stops in place of two that let
    its queue stay in quota. 10: no queue has a quota.
    """
    draw, n = np.random.Generator(np.random.PCG64(seed)), 80
    workload = make_workload(
        "evicts", np.cumsum(draw.integers(0, 3, n)) * 3 * SECOND, draw.integers(5, 150, n) * SECOND,
        draw.choice([1, 1, 2, 4, 4, 8], n), priority=draw.integers(0, 3, n), queue=draw.integers(0, 3, n),
        queues=("a", "b", "own"), preemptible=(draw.random(n) < 0.9).astype(int),
    )  # fmt: skip
    shares = [
        Queue(name, "all", quotas=(Quota(nominal=gpus * GPU),)) for name, gpus in (("a", 6), ("b", 6), ("own", 4))
    ]
    profile = PROFILES[7]
    assert profile.preemption is not None
    evicts = structs.replace(profile.preemption, min_run_s=20, most=most, exact=exact, move_victims=moves)
    simulation = {"checkpoint_s": checkpoint, "resume_cost": [[2, 3.0], [8, 11.0]]}
    queues = NO_QUEUES if seed == 10 else QueueConfig((Queue("all"), *shares))
    moved, counts = assert_evicted_alike(workload, replace(profile, preemption=evicts, simulation=simulation), queues)
    assert len(moved) > 4
    assert any(moved) == moves
    assert {0, 1} <= set(counts)


GANGS = replace(at_once((0, 60, 2, 0), (5, 60, 2, 0), (22, 30, 8, 1)), pods=np.array([3, 3, 0]))
"""Two gangs lie on all three nodes. Both would have to stop, which is too much; one is protected for a while."""
THREE = at_once((0, 60, 4, 0), (5, 60, 4, 0), (5, 60, 4, 0), (22, 30, 8, 1))
"""Two of three would have to stop, and only one has run long enough."""


@pytest.mark.parametrize(("workload", "nominal"), [(GANGS, 0), (GANGS, 99), (THREE, 0)])
def test_that_no_victims_are_found_is_not_always_proven(workload: Workload, nominal: int) -> None:
    """Without quotas all are searched, though not exactly; under one (`nominal` GPUs) time may tell."""
    profile = PROFILES[7]
    assert profile.preemption is not None
    evicts = structs.replace(profile.preemption, min_run_s=20, most=1.0, exact=0)
    own = QueueConfig((Queue(workload.queues[0], quotas=(Quota(nominal=nominal * GPU),)),)) if nominal else NO_QUEUES
    assert 0 in assert_evicted_alike(workload, replace(profile, preemption=evicts), own)[1]


def test_queues_without_quotas_have_nothing_to_reclaim() -> None:
    """The second job may not stop the first; the third starts, and no look is due when that may be stopped."""
    workload = replace(at_once((0, 60, 8, 0), (1, 30, 8, 1), (2, 30, 4, 0)), preemptible=np.array([0, 1, 1]))
    with as_written():
        assert_decided_alike(workload, PATIENT, QueueConfig((Queue(workload.queues[0]),)))
