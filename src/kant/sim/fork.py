"""Fork: a run that goes on from where a journal stood at a time.

The state is what the journal's events make of an empty one, the scheduler a new one before it: it decides as the one
that was there would have. So a fork in which nothing is changed starts and ends every job when the simulated run
itself did (tests/core/test_whatif.py), as far as a journal can say it:

- a job that was a burst replica of one that had left already is in it as withdrawn, and stays so;
- a cycle that decided nothing leaves no trace, and neither does the moment at which it wanted to be woken: it is found
  by asking again. Preemption, and promises among tenants, may then be a cycle behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.errors import InputError, StateError
from kant.model.event import (
    BookingEnded,
    Event,
    GpusBooked,
    JobCancelled,
    JobSubmitted,
    NodesJoined,
    QueuesChanged,
    TypicalPodsGiven,
)
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import FOREVER, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.sim.drains import Drain, drained
from kant.sim.faults import Faults, drawn
from kant.sim.follow import Follower
from kant.sim.node_stands import NODE_EVENTS, NodeStands
from kant.sim.past import Past
from kant.sim.remaining_work import RemainingWork, work_of
from kant.sim.run import Run, RunHooks
from kant.workload.faults_file import NodeHealth

ASKED = 1000
"""Times in a row that a scheduler is asked when it wants to be woken; then it is asked as of now."""


@dataclass(slots=True)
class Fork:
    """A run that stands at `past.now`; `coming` are the submissions after that, in order."""

    past: Past
    run: Run
    work: RemainingWork
    coming: list[JobSubmitted]

    @property
    def state(self) -> ClusterState:
        return self.run.state


def fork(
    past: Past,
    *,
    cluster: ClusterSpec | None = None,
    profile: Profile | None = None,
    work: RemainingWork | None = None,
    drains: Iterable[Drain] = (),
    arrivals: bool = True,
    until: int = FOREVER,
    hooks: RunHooks | None = None,
) -> Fork:
    """Stand at the end of `past`, before a `cluster` with further nodes and under another `profile` where given.

    How jobs run, and which nodes fall ill, stays as it was in the journal. `work` is what is known of jobs (found out
    where it is not given); without `arrivals` nobody comes any more. Raises InputError for a broken journal.
    """
    header, options = past.header, past.options
    run = Run(
        header.workload, header.cluster, profile or past.profile, options, header.seed, until,
        hooks or RunHooks(), zero=header.zero, begins=header.begins,
    )  # fmt: skip
    follower = Follower(run.execution)
    for event in past.events:
        try:
            follower.follow(event)
        except (StateError, OverflowError) as violation:
            raise InputError(str(past.path), f"events that fit the state: {violation}") from None
    work = work or work_of(past, run.state, arrivals)
    follower.settle(work.left, past.now)
    if cluster is not None and cluster != header.cluster:
        run.cluster = cluster
        new = tuple(node for node in cluster.nodes if node.name not in run.state.node_index)
        if new:
            run.execution.happen(NodesJoined(past.now, new))
        run.recorder.serviced(len(header.cluster.nodes), past.now)
    _begin(run, past)
    run.faults = _faults(run, past, drains)
    run.rounds = None  # a future asks no solver: it is to be known in seconds
    run.external = deque(_external(past))
    return Fork(past, run, work, list(_coming(past, work)) if arrivals else [])


def _begin(run: Run, past: Past) -> None:
    """The metrics begin now, and count nobody who has left; the next cycle comes when the last one wanted it to."""
    status = run.state.jobs[: len(run.state.ids), c.J_STATUS]
    run.begin = past.now
    run.gone = np.flatnonzero((status != JobStatus.PENDING) & (status != JobStatus.RUNNING))
    run.recorder.lost_work.clear()
    run.wake = wake_after(run, past)


def wake_after(run: Run, past: Past) -> int:
    """When, after the end of `past`, a cycle is to come though nothing happens; FOREVER: never.

    A new scheduler is asked, as the one in the run was: after the last thing that happened, and again whenever it
    wants to be asked, until it names a time that has not passed. What it would decide is its own affair.
    """
    asked, at = Scheduler(run.state, run.profile, run.seed), past.last_instant
    wake = asked.cycle(at).review_at
    for _ in range(ASKED):
        if not at < wake <= past.now:
            break
        at, wake = wake, asked.cycle(wake).review_at
    else:
        wake = asked.cycle(past.now).review_at
    again = past.last_instant + past.options.recheck_s * SECOND
    if past.options.recheck_s and run.state.pending and again > past.now:
        wake = min(wake, again) if wake > past.now else again
    return wake if wake > past.now else FOREVER


def _coming(past: Past, work: RemainingWork) -> Iterator[JobSubmitted]:
    """Who came later, with their run times; not the burst replicas that came after their base job had left."""
    submitted = [event for event in past.later if isinstance(event, JobSubmitted)]
    times = {event.job.id: event.time for event in submitted}
    withdrawn = {
        event.job for event in past.later if isinstance(event, JobCancelled) and event.time == times.get(event.job)
    }
    for event in submitted:
        if event.job.id not in withdrawn:
            yield replace(event, runtime=work.left.get(event.job.id, event.runtime))


def _external(past: Past) -> Iterator[Event]:
    """What people did later, and what happened to nodes once others had joined.

    That the burst replicas of a job are withdrawn with it is nobody's doing.
    """
    stands = _stands(past)
    replicas = {e.job.id for e in (*past.events, *past.later) if isinstance(e, JobSubmitted) and e.job.base_job}
    for event in past.later:
        stands.after(event)
        by_name = stands.by_name and isinstance(event, NODE_EVENTS)
        if (
            by_name
            or isinstance(event, QueuesChanged | TypicalPodsGiven | GpusBooked | BookingEnded)
            or (isinstance(event, JobCancelled) and event.job not in replicas)
        ):
            yield event


def _stands(past: Past) -> NodeStands:
    """How the nodes stand at the end of the past."""
    stands = NodeStands(past.header.cluster)
    for event in past.events:
        stands.after(event)
    return stands


def _faults(run: Run, past: Past, drains: Iterable[Drain]) -> Faults:
    """What will happen to nodes: as drawn from the journal's seed, else as it happened; and the drains over it."""
    state, header, options = run.state, past.header, past.options
    now = [
        NodeHealth(
            past.now, node, NodeStatus(status), state.health.lost.get(node, 0), state.health.drains.get(node, -1)
        )
        for node, status in enumerate(state.table[:, c.STATUS].tolist())
    ]
    if options.mtbf_days:
        every = drawn(run.cluster, options, header.seed)
        coming: Iterable[NodeHealth] = dropwhile(lambda health: health.time <= past.now, every)
    else:
        stands = _stands(past)
        coming = [health for event in past.later for health in stands.after(event)]
    drains = tuple(drains)
    faults = Faults(drained(now, coming, drains) if drains else iter(coming))
    faults.unhealthy = {health.node for health in now if health.status != NodeStatus.IN_SERVICE or health.lost}
    faults.for_good = {node: drain.start for drain in drains if drain.end >= FOREVER for node in drain.nodes}
    faults.any = faults.any or any(isinstance(event, NODE_EVENTS) for event in (*past.events, *past.later))
    return faults
