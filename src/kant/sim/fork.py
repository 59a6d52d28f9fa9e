"""Fork: a run that continues from the state which a journal has at a given time.

The journal's events are applied to an empty state, and a new scheduler decides as the original one would have. So a
fork without changes starts and ends every job when the simulated run itself did (tests/core/test_whatif.py), as far as
the journal tells: a burst replica whose base job had left counts as withdrawn, and stays so. A cycle that decided
nothing leaves no trace in the journal, so the time for which it asked to be woken is found by asking a scheduler again.
Preemption, and reservations between tenants, may then be a cycle late.
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
"""Maximum number of times that a scheduler is asked for its wake-up time; after that it is asked only for the present
time.
"""


@dataclass(slots=True)
class Fork:
    """A run at time `past.now`; `coming` are the later submissions, in order."""

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
    """Build a run at the end of `past`, on a `cluster` with further nodes and under another `profile` where given.

    Job speed and node faults remain as in the journal. `work` is the known work of the jobs (computed if not given);
    without `arrivals` no more jobs arrive. Raises InputError for a broken journal.
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
    run.rounds = None  # no solver is asked, so that the future is fast
    run.external = deque(_external(past))
    return Fork(past, run, work, list(_coming(past, work)) if arrivals else [])


def _begin(run: Run, past: Past) -> None:
    """Start the metrics now, without jobs that have left; the next cycle is due when the last one asked for it."""
    status = run.state.jobs[: len(run.state.ids), c.J_STATUS]
    run.begin = past.now
    run.gone = np.flatnonzero((status != JobStatus.PENDING) & (status != JobStatus.RUNNING))
    run.recorder.lost_work.clear()
    run.wake = wake_after(run, past)


def wake_after(run: Run, past: Past) -> int:
    """Return when the next cycle without an event is due after the end of `past`; FOREVER: never.

    A new scheduler is asked as the run's own was: at the last instant, and again at each time that it names, until it
    names a time in the future. Its decisions are discarded.
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
    """Yield later submissions with their run times, without burst replicas that came after their base job had left."""
    submitted = [event for event in past.later if isinstance(event, JobSubmitted)]
    times = {event.job.id: event.time for event in submitted}
    withdrawn = {
        event.job for event in past.later if isinstance(event, JobCancelled) and event.time == times.get(event.job)
    }
    for event in submitted:
        if event.job.id not in withdrawn:
            yield replace(event, runtime=work.left.get(event.job.id, event.runtime))


def _external(past: Past) -> Iterator[Event]:
    """Yield later actions of users, and node changes once other nodes had joined.

    The withdrawal of burst replicas along with their job is no user action.
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
    """Return the health of the nodes at the end of the past."""
    stands = NodeStands(past.header.cluster)
    for event in past.events:
        stands.after(event)
    return stands


def _faults(run: Run, past: Past, drains: Iterable[Drain]) -> Faults:
    """Return future node changes: drawn from the journal's seed, or else those recorded in it; with the drains
    added.
    """
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
