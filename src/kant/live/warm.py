"""Warm-up: compiles the Numba code, or reads it from its cache, before the first decision is needed."""

from __future__ import annotations

import numpy as np

from kant.compiled import compiling_ahead
from kant.insight.diagnosis import Diagnosis
from kant.insight.victims_too_large import victims_too_large
from kant.metrics.live import Occupancy
from kant.model.decision import Start
from kant.model.event import (
    DevicesChanged,
    JobCancelled,
    JobFinished,
    JobFound,
    JobStarted,
    JobSubmitted,
    NodeChanged,
    NodesJoined,
)
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.placement.cost.slowdown import Slowdowns
from kant.queueing.evictable import RUNNING_WIDTH, add_pools_held
from kant.queueing.preemption.policy import candidates_of
from kant.queueing.preemption.search import search
from kant.scheduler.cycle import Scheduler
from kant.scheduler.partial_gangs import complete_partial_gangs
from kant.scheduler.profile import Profile


@compiling_ahead()
def warm(profile: Profile, ahead: bool = False) -> None:
    """Compile the code of all decisions by scheduling a small cluster: pods, whole nodes, gangs, partly bound gangs.

    Some jobs end, and nodes close and join. With `ahead`, the starts of waiting jobs are planned too, as for
    explanations.
    """
    nodes = tuple(Node(f"n{i}", 8, leaf=f"l{i // 2}", spine="s") for i in range(4))
    state = profile.new_state(ClusterSpec("warm", nodes))
    scheduler = Scheduler(state, profile)
    jobs = (
        Job("pod", 0, (PodGroup(1, Demand(1)),)),
        Job("whole", 0, (PodGroup(1, Demand(8)),)),
        Job("bare", 0, (PodGroup(1, Demand(0, cpu=1000, memory=1)),)),
        Job("gang", 0, (PodGroup(2, Demand(4, cpu=1)),)),
        Job("near", 0, (PodGroup(2, Demand(2)),), within="leaf", within_required=True),
        Job("large", 0, (PodGroup(5, Demand(8)),)),
    )
    for job in jobs:
        state.apply(JobSubmitted(0, job))
    for decision in scheduler.cycle(0).decisions:
        if isinstance(decision, Start):
            state.apply(JobStarted(0, decision.job, decision.allocation))
    state.apply(JobSubmitted(1, Job("part", 0, (PodGroup(2, Demand(1)),))))
    state.apply(JobFound(1, "part", np.array([[3, 1, 128, 1000, 0, 0, 1, 0, 0]], dtype=np.int64)))
    complete_partial_gangs(scheduler, 1)
    Occupancy(state).observe(2)
    slowdowns = Slowdowns(state)
    for allocation in state.running.values():
        slowdowns.spans(allocation)
    state.apply(JobFinished(2, "pod"))
    state.apply(JobCancelled(2, "gang"))
    state.apply(NodeChanged(2, "n0", NodeStatus.CORDONED))
    state.apply(DevicesChanged(2, "n0", 1 << 7))
    state.apply(NodesJoined(2, (Node("n4", 8, leaf="l2", spine="s"),)))
    scheduler.cycle(3)
    state.apply(NodeChanged(4, "n0", NodeStatus.IN_SERVICE))
    scheduler.cycle(4)
    if ahead:
        from kant.insight.domain_choice import domain_choices  # only explanations need this module

        domain_choices(scheduler, 3)
    diagnosis = Diagnosis(scheduler, 4)
    victims_too_large(diagnosis, state.rows["large"])
    if profile.preemption is not None:  # the victims of a single pod, however many there are to choose from
        with diagnosis.rolled_back():
            pool = candidates_of(diagnosis.cycle, list(state.running))
            search(diagnosis.placer, state.shapes.of(jobs[0]), state.rows["large"], pool, FOREVER, exact=0)
            diagnosis.placer.fits_without(state.shapes.of(jobs[0]), pool.rows)
        add_pools_held(np.zeros((0, RUNNING_WIDTH), np.int64), state.jobs, state.pieces, state.table)
