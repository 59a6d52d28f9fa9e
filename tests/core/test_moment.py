"""A moment that is frozen: the state that comes out of it is the one that went in, and that stays as it is."""

from __future__ import annotations

import numpy as np

from kant.insight.moment import freeze, thaw
from kant.model.decision import Start
from kant.model.event import JobFinished, JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile


def test_what_runs_and_waits_is_the_same_after_it_was_frozen_and_that_is_left_alone() -> None:
    profile = builtin_profile("kant")
    state = profile.new_state(ClusterSpec("c", tuple(Node(f"n{i}", 8) for i in range(3))))
    gang = (PodGroup(2, Demand(4)), PodGroup(1, Demand(1, cpu=1000)))
    jobs = (Job("gang", 0, gang), Job("pod", 0, (PodGroup(1, Demand(1)),)), Job("large", 0, (PodGroup(4, Demand(8)),)))
    for job in jobs:
        state.apply(JobSubmitted(0, job))
    for decision in Scheduler(state, profile).cycle(0).decisions:
        if isinstance(decision, Start):
            state.apply(JobStarted(0, decision.job, decision.allocation))
    assert len(state.running) == 2 and len(state.live) == 3
    before = dict(vars(state))
    running, live = dict(state.running), dict(state.live)
    twin = thaw(freeze(state))
    twin.check()
    assert all(vars(state)[name] is value for name, value in before.items())
    assert twin.counter_tables.state is twin, "its parts know it"
    assert dict(state.live) == live == twin.live and list(twin.live) == list(live)
    assert list(state.running) == list(running) == list(twin.running)
    assert all(np.array_equal(state.running[row], held) for row, held in running.items())
    assert all(np.array_equal(twin.running[row], held) for row, held in running.items())
    twin.apply(JobFinished(1, "gang"))
    twin.check()
    state.check()
    assert list(state.running) == list(running)
