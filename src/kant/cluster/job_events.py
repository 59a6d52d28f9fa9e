"""What happens to jobs, and what it changes in the state: a function for each event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.elastic import Progress, pods_by_group
from kant.cluster.node_events import blamed_for, opened
from kant.cluster.rivals import Rivals
from kant.cluster.size_events import resize, take
from kant.model import event as ev
from kant.model.errors import Violation
from kant.model.job import Job
from kant.model.placement import NODE, Reservation
from kant.model.status import JobStatus
from kant.model.units import FOREVER

if TYPE_CHECKING:
    from kant.cluster.state import ClusterState


def submitted(state: ClusterState, event: ev.JobSubmitted) -> None:
    job = event.job
    if job.id in state.rows:
        raise Violation(f"job {job.id!r} was submitted twice")
    numbers = (job.submit, job.estimate, job.priority, job.limit, job.due, job.checkpoint, job.retries)
    if max(map(abs, numbers)) >= FOREVER:
        raise Violation(f"job {job.id!r} has a number beyond 62 bits")
    row = len(state.ids)
    if row == len(state.jobs):
        state.jobs = np.concatenate([state.jobs, np.zeros_like(state.jobs)])
    shape = state.shapes.of(job)
    core = state.row_of(job.core) if job.core else -1
    if core >= 0 and core not in state.live:
        raise Violation(f"job {job.id!r} is a burst of {job.core!r}, which has left")
    if job.queue not in state.queues:
        state.queues[job.queue] = len(state.queues)
        state.holdings.queue_added(job.queue)
    queue = state.queues[job.queue]
    user = state.users.setdefault(job.user, len(state.users))
    kind, promises = run_time_promises(state, job, queue, user, shape.most_milli if shape.ceiling else shape.gpu_milli)
    state.jobs[row] = (
        job.submit, JobStatus.PENDING.value, queue, shape.index, job.priority, shape.gpu_milli, job.estimate,
        job.estimate, event.time, 0, 0, -1, -1, 0, state.arrivals, 0, 0, shape.pods,
        int(job.preemptible), -1, user, job.limit, job.due, job.checkpoint, 0, 0, core,
        int(not state.holdings.accepts(queue)), kind, *promises,
    )  # fmt: skip
    state.arrivals += 1
    state.ids.append(job.id)
    state.rows[job.id] = row
    state.typical.submitted(shape, state.shapes.demands)
    state.live[row] = job
    if core >= 0:
        state.bursts.setdefault(core, {})[row] = None
    if shape.ceiling:
        state.elastic[row] = Progress(shape, job.estimate)
        state.elastic[row].rest(state.jobs, row)
    wait(state, row, event.time)


def run_time_promises(state: ClusterState, job: Job, queue: int, user: int, milli: int) -> tuple[int, tuple[int, ...]]:
    """The kind of a job's run time, and how long it will run at most at two probabilities."""
    if state.history is None:
        return -1, (-1, -1)
    kind = state.history.kind(queue, user if job.user else -1, job.name, milli)
    return kind, state.history.promises(kind)


def started(state: ClusterState, event: ev.JobStarted) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise Violation(f"job {event.job!r} started without waiting")
    shape = state.shape_of(row)
    if shape.ceiling and pods_by_group(shape, event.allocation) is None:
        raise Violation(f"job {event.job!r} started with other than its floor up to its ceiling")
    take(state, event.job, event.allocation)
    del state.pending[row]
    state.reserved.pop(row, None)
    state.health.broken.pop(row, None)
    state.waiting_milli -= shape.gpu_milli
    rivals = state.rivals[shape.pool_bits]
    del rivals.pending[row]
    rivals.running[row] = None
    queue, user = state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
    state.holdings.started(row, queue, user, shape, event.allocation, event.time)
    state.moved.add(row)
    rivals.stirred = event.time
    state.running[row] = event.allocation
    if shape.company is not None and shape.company.group:
        state.companions.setdefault(shape.company.group, {})[row] = None
    c.job_starts(state.jobs, row, event.time)
    if shape.ceiling:
        resize(state, row, event.time)


def finished(state: ClusterState, event: ev.JobFinished) -> None:
    row = leave_devices(state, event.job, event.time, JobStatus.FINISHED, 0)
    forget(state, row)
    if state.history is not None:
        kind, ran, *promised = state.jobs[row, [c.J_KIND, c.J_ATTAINED, c.J_P50, c.J_P90]].tolist()
        state.history.finished(kind, ran, tuple(promised))


def preempted(state: ClusterState, event: ev.JobPreempted) -> None:
    row = leave_devices(state, event.job, event.time, JobStatus.PENDING, event.cost)
    if not event.moved:
        state.jobs[row, c.J_PREEMPTIONS] += 1
    state.jobs[row, c.J_RETURNS] = 0
    wait(state, row, event.time)


def evicted(state: ClusterState, event: ev.JobEvicted) -> None:
    blamed = blamed_for(state, event.job, event.node)
    row = leave_devices(state, event.job, event.time, JobStatus.PENDING, event.cost)
    if blamed is not None:
        state.health.blame(row, blamed[0])
        state.health.broken[row] = blamed[1]
    state.jobs[row, c.J_EVICTIONS] += 1
    state.jobs[row, c.J_RETURNS] += 1
    wait(state, row, event.time)


def failed(state: ClusterState, event: ev.JobFailed) -> None:
    blamed = blamed_for(state, event.job, event.node)
    row = leave_devices(state, event.job, event.time, JobStatus.PENDING, event.cost)
    if blamed is not None:
        state.health.blame(row, blamed[0])
    state.jobs[row, c.J_FAILURES] += 1
    state.jobs[row, c.J_RETURNS] += 1
    wait(state, row, event.time)


def refused(state: ClusterState, event: ev.JobRefused) -> None:
    row = give_back(state, event.job, event.time)
    c.job_was_refused(state.jobs, row)
    if row in state.elastic:
        state.elastic[row].rest(state.jobs, row)
    state.jobs[row, c.J_RETURNS] += not event.blameless
    wait(state, row, event.time)


def found(state: ClusterState, event: ev.JobFound) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise Violation(f"job {event.job!r} was found bound without waiting")
    nodes = event.allocation[:, NODE]
    if len(nodes) == 0 or nodes.min() < 0 or nodes.max() >= len(state.spec.nodes):
        raise Violation(f"job {event.job!r} was found bound to nodes that are not there")
    state.health.broken[row] = event.allocation


def rejected(state: ClusterState, event: ev.JobRejected) -> None:
    withdraw(state, state.row_of(event.job), event.time, JobStatus.REJECTED)


def cancelled(state: ClusterState, event: ev.JobCancelled) -> None:
    row = state.row_of(event.job)
    if row in state.running:
        leave_devices(state, event.job, event.time, JobStatus.CANCELLED, 0)
        forget(state, row)
    else:
        withdraw(state, row, event.time, JobStatus.CANCELLED)


def progressed(state: ClusterState, event: ev.JobProgressed) -> None:
    row = state.row_of(event.job)
    if row not in state.running:
        raise Violation(f"job {event.job!r} made progress without running")
    progress = state.elastic.get(row)
    if progress is not None:
        progress.settle(state.jobs, row, event.time)
    state.jobs[row, c.J_ATTAINED] += event.time - state.jobs[row, c.J_SINCE]
    state.jobs[row, c.J_SINCE] = event.time
    state.jobs[row, c.J_REMAINING] = event.remaining
    if progress is not None:
        progress.left = event.remaining * progress.ceiling
        progress.turn_to(state.jobs, row, progress.pods, progress.milli)
    state.moved.add(row)
    state.rivals[state.shape_of(row).pool_bits].stirred = event.time


def demoted(state: ClusterState, event: ev.JobDemoted) -> None:
    state.jobs[state.row_of(event.job), c.J_LEVEL] = event.level


def protected(state: ClusterState, event: ev.JobProtected) -> None:
    row = state.row_of(event.job)
    job = state.live.get(row)
    if job is None:
        raise Violation(f"job {event.job!r} has left, and nobody stops it")
    loose = int(job.preemptible and not event.by)
    if loose == state.jobs[row, c.J_PREEMPTIBLE]:
        return
    state.jobs[row, c.J_PREEMPTIBLE] = loose
    state.moved.add(row)
    shape = state.shape_of(row)
    state.rivals[shape.pool_bits].stirred = event.time
    if loose and row in state.running:  # who waits may have what it holds
        state.services += 1
        opened(state, sum(1 << pool for pool in set(state.table[state.running[row][:, NODE], c.POOL].tolist())))


def ordered(state: ClusterState, event: ev.QueueOrdered) -> None:
    rows = [state.row_of(job) for job in event.jobs]
    state.jobs[rows, c.J_RANK] = np.arange(state.arrivals, state.arrivals + len(rows))
    state.arrivals += len(rows)


def reserved(state: ClusterState, event: ev.JobReserved) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise Violation(f"job {event.job!r} was promised a place without waiting")
    if not event.time <= event.start < event.end:
        raise Violation(f"job {event.job!r} was promised a place from {event.start} to {event.end}")
    state.reserved[row] = Reservation(event.start, event.end, event.allocation, event.time)


def released(state: ClusterState, event: ev.JobReleased) -> None:
    if state.reserved.pop(state.row_of(event.job), None) is None:
        raise Violation(f"job {event.job!r} was promised nothing")


def wait(state: ClusterState, row: int, now: int) -> None:
    state.pending[row] = None
    shape = state.shape_of(row)
    state.waiting_milli += shape.gpu_milli
    state.moved.add(row)
    rivals = state.rivals.get(shape.pool_bits)
    if rivals is None:
        rivals = state.rivals[shape.pool_bits] = Rivals(shape.pool_bits)
    rivals.pending[row] = None
    rivals.stirred = now


def leave_devices(state: ClusterState, job: str, now: int, status: JobStatus, cost: int) -> int:
    if not 0 <= cost < FOREVER:
        raise Violation(f"stopping job {job!r} costs {cost}: not a time")
    row = give_back(state, job, now)
    progress = state.elastic.get(row)
    if progress is not None:
        progress.settle(state.jobs, row, now)
        progress.costs(cost)
    c.job_stops(state.jobs, row, now, status.value, cost)
    if progress is not None:
        progress.rest(state.jobs, row)
    return row


def give_back(state: ClusterState, job: str, now: int) -> int:
    row = state.row_of(job)
    allocation = state.running.pop(row, None)
    if allocation is None:
        raise Violation(f"job {job!r} does not run")
    shape = state.shape_of(row)
    rivals = state.rivals[shape.pool_bits]
    del rivals.running[row]
    rivals.stirred = now
    if shape.company is not None and shape.company.group:
        members = state.companions[shape.company.group]
        del members[row]
        if not members:
            del state.companions[shape.company.group]
    state.holdings.stopped(row, now)
    state.moved.add(row)
    opened(state, int(c.give(state.table, state.log, state.pools, allocation)))
    return row


def withdraw(state: ClusterState, row: int, now: int, status: JobStatus) -> None:
    if row not in state.pending:
        raise Violation(f"job {state.ids[row]!r} does not wait")
    del state.pending[row]
    state.reserved.pop(row, None)
    forget(state, row)
    state.moved.add(row)
    state.openings += 1
    shape = state.shape_of(row)
    state.waiting_milli -= shape.gpu_milli
    rivals = state.rivals[shape.pool_bits]
    del rivals.pending[row]
    rivals.stirred = now
    state.jobs[row, c.J_WAITED] += now - state.jobs[row, c.J_SINCE]
    state.jobs[row, [c.J_SINCE, c.J_END]] = now
    state.jobs[row, c.J_STATUS] = status.value


def forget(state: ClusterState, row: int) -> None:
    """A job leaves for good. Bursts that have lost their core are the scheduler's to stop."""
    del state.live[row]
    state.health.forget(row)
    if row in state.elastic:
        state.elastic.pop(row).leave(state.jobs, row)
    core = int(state.jobs[row, c.J_CORE])
    if core >= 0:
        del state.bursts[core][row]
        if not state.bursts[core] and core not in state.live:
            del state.bursts[core]
    elif row in state.bursts and not state.bursts[row]:
        del state.bursts[row]
