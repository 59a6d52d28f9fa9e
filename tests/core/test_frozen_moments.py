"""A moment that is frozen in steps is that of the first, and what was drawn, changed and left comes back whole."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kant.insight.moment import PART, at_once, freeze, moment_in_steps, moment_of, thaw
from kant.insight.past_jobs import PastJobs
from kant.live.core import Core
from kant.live.moments import present_moment
from kant.live.optimality import EVERY, OptimalityLooks
from kant.live.solver import SolverTask, work_out
from kant.model.node import ClusterSpec, Node
from kant.model.units import SECOND
from kant.scheduler.cycle import Scheduler
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import QUEUES, Mould, draw_arrivals, draw_cluster, generator


def in_the_middle(seed: int) -> Harness:
    """A cluster on which drawn jobs wait and run, with queues, and nodes that have come, changed and gone."""
    draw = generator(seed)
    nodes = draw_cluster(draw, 6).nodes
    harness = Harness(ClusterSpec("drawn", nodes, grows=bool(seed % 2)), make_profile("fifo", "backfill"), seed=seed)
    harness.set_queues(make_queue("all"), *(make_queue(name, 12, parent="all") for name in QUEUES))
    for event in draw_arrivals(draw, 40, Mould(groups=2), gap=60):
        harness.now = max(harness.now, event.time)
        harness.submit(event.job)
        harness.cycle()
        if len(harness.state.running) > 8:
            harness.finish(harness.state.ids[next(iter(harness.state.running))])
        if event.job.id.endswith("7"):
            harness.join(Node(f"late-{event.job.id}", 8, leaf="far"))
            harness.describe(Node(f"late-{event.job.id}", 8, leaf="farther"))
        if event.job.id.endswith("9"):
            harness.leave(*[name for name in harness.state.node_index if name.startswith("late")][:1])
    return harness


@pytest.mark.parametrize("seed", range(4))
def test_what_is_frozen_comes_back_whole_and_decides_the_same(seed: int) -> None:
    harness = in_the_middle(seed)
    state = harness.state
    before = state.jobs.copy(), state.table.copy()
    found = thaw(freeze(state))
    found.check()
    assert all(np.array_equal(*both) for both in zip(before, (state.jobs, state.table), strict=True)), "it is as it was"
    assert state.nodes is state.node_rows.nodes and state.nodes
    assert found.nodes is found.node_rows.nodes and found.node_index is found.node_rows.index
    assert (found.ids, found.rows, found.nodes, found.spec) == (state.ids, state.rows, state.nodes, state.spec)
    assert (found.live, list(found.pending)) == (state.live, list(state.pending)) and found.pending and found.running
    assert found.quota_usage.charged == state.quota_usage.charged and found.quota_usage.charged
    assert {row: held.tolist() for row, held in found.running.items()} == {
        row: held.tolist() for row, held in state.running.items()
    }
    now = harness.now + 600 * SECOND
    plans = [Scheduler(one, harness.profile, 3).cycle(now) for one in (state, found)]
    assert [str(one) for one in plans[0].decisions] == [str(one) for one in plans[1].decisions]


def test_each_thawed_state_is_a_separate_one() -> None:
    harness = in_the_middle(1)
    moment = moment_of(harness.scheduler, PastJobs(), harness.now)
    one, two = moment.thawed(), moment.thawed()
    one.table[:] = one.jobs[:] = -7
    for held in one.running.values():
        held[:] = -7
    one.pieces[:] = -7
    two.check()


def test_whatever_happens_between_the_steps_the_moment_is_that_of_the_first() -> None:
    harness = in_the_middle(3)
    state = harness.state
    running = list(state.running)
    then = at_once(moment_in_steps(harness.scheduler, PastJobs(), harness.now))
    steps = moment_in_steps(harness.scheduler, PastJobs(), harness.now)
    next(steps)
    for row in running[:3]:
        harness.finish(state.ids[row])
    harness.submit(make_job("new", 1))
    harness.join(Node("newest", 8))
    harness.cycle()
    found = at_once(steps).thawed()
    found.check()
    assert (list(found.running), found.ids) == (running, then.thawed().ids)
    assert found.nodes == then.thawed().nodes != state.nodes
    state.check()


async def test_the_loop_goes_on_while_a_moment_is_frozen() -> None:
    core = Core(make_cluster(8), make_profile())
    core.settled()
    core.state.live = dict.fromkeys(range(3 * PART), make_job("one", 1))  # only their number matters
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    moment = await present_moment(core)
    beside.cancel()
    assert turns >= 4 and len(moment.state.jobs) == 3


async def test_no_look_is_made_while_nobody_reads_them() -> None:
    """The solver would have a core of the machine busy, and the leader would send it its state, for nobody."""
    made, now = 0, [0.0]

    async def here(task: SolverTask) -> bytes:
        nonlocal made
        made += 1
        return work_out(task)

    core = Core(make_cluster(8), make_profile())
    core.settled()
    looks = OptimalityLooks(here, lambda: now[0])
    for reads, expected in ((False, 0), (True, 1), (False, 1), (True, 2)):
        now[0] += 20 * EVERY
        core.state.job_changes.add(0)
        if reads:
            looks.latest()
        beside = asyncio.create_task(looks.keep_up(lambda: core))
        while not beside.done() and made < expected:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        beside.cancel()
        assert made == expected
    assert looks.latest() is not None
