"""The events of jobs: a function for each, which applies it to the state."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.elastic import Progress, pods_by_group
from kant.cluster.elastic_events import not_free, resize
from kant.cluster.node_events import add_user_queue, blamed_for, capacity_freed
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.job import Job
from kant.model.placement import NODE, WIDTH, Reservation
from kant.model.status import JobStatus
from kant.model.units import FOREVER

FINISHED, REJECTED, CANCELLED = int(JobStatus.FINISHED), int(JobStatus.REJECTED), int(JobStatus.CANCELLED)


def submitted(state: StateData, event: ev.JobSubmitted) -> None:
    job = event.job
    if job.id in state.rows:
        raise StateError(f"job {job.id!r} was submitted twice")
    numbers = (job.submit, job.estimate, job.priority, job.limit, job.due, job.checkpoint, job.retries)
    if max(map(abs, numbers)) >= FOREVER:
        raise StateError(f"job {job.id!r} has a number of more than 62 bits")
    row = len(state.ids)
    if row == len(state.jobs):
        state.jobs = c.longer(state.jobs)
    shape = state.shapes.of(job)
    base = state.row_of(job.base_job) if job.base_job else -1
    if base >= 0 and base not in state.live:
        raise StateError(f"job {job.id!r} is a burst replica of {job.base_job!r}, which has ended")
    quotas = state.quota_usage
    name = job.queue
    if quotas.shared:
        name = quotas.queue_of(name, job.user)
        add_user_queue(state, name)
    if name not in state.queues:
        state.queues[name] = len(state.queues)
        quotas.queue_added(name)
    queue = state.queues[name]
    if quotas.tree is not None and quotas.tree.max_times and job.limit < 0:
        job = replace(job, limit=quotas.max_time(queue)[0] or -1)
    user = state.users.setdefault(job.user, len(state.users))
    to.submitted(
        state.jobs, row, event.time, state.arrivals, queue, user, shape.index, shape.gpu_milli, shape.pods,
        job.submit, job.estimate, job.priority, job.preemptible, job.due, job.checkpoint, base,
        job.limit,
    )  # fmt: skip
    if state.history is not None:
        state.jobs[row, c.J_KIND :] = run_time_promises(state, job, queue, user)
    if quotas.tree is not None and not quotas.accepts(queue, job.limit):
        state.unwanted.add(row)
    state.arrivals += 1
    state.ids.append(job.id)
    state.rows[job.id] = row
    state.live[row] = job
    if job.limit >= 0:
        state.limits_runs = True
    if job.reservation:
        state.books = state.limits_runs = True
    if base >= 0:
        state.burst_replicas.setdefault(base, {})[row] = None
    if shape.ceiling:
        state.elastic[row] = Progress(shape, job.estimate)
        state.elastic[row].rest(state.jobs, row)
    state.pending[row] = None
    state.waiting_milli += shape.gpu_milli
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, event.time)


def run_time_promises(state: StateData, job: Job, queue: int, user: int) -> tuple[int, int, int]:
    """Return a job's kind (`history.py`), and the run times (µs) not exceeded in 50 and 90 % of cases (-1: unknown)."""
    assert state.history is not None
    kind = state.history.kind(queue, user if job.user else -1, job.name, job.gpu_milli)
    p50, p90 = state.history.promises(kind)
    return kind, p50, p90


def started(state: StateData, event: ev.JobStarted) -> None:
    row, now, jobs = state.rows.get(event.job, -1), event.time, state.jobs
    if row not in state.pending:
        raise StateError(f"job {event.job!r} started while it was not waiting")
    shape = state.shapes.shapes[jobs.item(row, c.J_SHAPE)]
    if shape.ceiling and pods_by_group(shape, event.allocation) is None:
        raise StateError(f"job {event.job!r} started with fewer pods than its floor or more than its ceiling")
    allocation = event.allocation
    if state.shapes.counts or allocation.shape[1] < WIDTH:
        allocation = state.shapes.counted(shape, allocation)
    at, count = state.pieces_used, len(allocation)
    if at + count > len(state.pieces):
        at = state.lay_out_pieces(count)
    demands = state.shapes.demands
    missing = to.started(
        state.table, state.log, state.pools, jobs, allocation, demands, row, now, state.pieces, at
    )  # fmt: skip
    if missing >= 0:
        raise not_free(event.job, allocation, missing)
    state.pieces_used = at + count
    del state.pending[row]
    state.reserved.pop(row, None)
    state.health.broken.pop(row, None)
    state.without_node.pop(row, None)
    state.waiting_milli -= shape.gpu_milli
    queue, user = jobs.item(row, c.J_QUEUE), jobs.item(row, c.J_USER)
    state.quota_usage.started(row, queue, user, shape, allocation, now)
    state.running[row] = allocation
    if shape.affinity is not None and shape.affinity.group:
        state.affinity_members.setdefault(shape.affinity.group, {})[row] = None
    if state.preemptible is not None:
        state.preemptible.starts(jobs, row)
    if shape.ceiling:
        resize(state, row, now)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, now)


def finished(state: StateData, event: ev.JobFinished) -> None:
    row = leave_devices(state, event.job, event.time, FINISHED)
    if state.history is not None:
        kind, ran, *promised = state.jobs[row, [c.J_KIND, c.J_ATTAINED, c.J_P50, c.J_P90]].tolist()
        state.history.finished(kind, ran, tuple(promised))


def preempted(state: StateData, event: ev.JobPreempted) -> None:
    counted = -1 if event.moved else c.J_PREEMPTIONS
    leave_devices(state, event.job, event.time, to.PENDING, event.cost, counted, to.ENDS)


def evicted(state: StateData, event: ev.JobEvicted) -> None:
    blamed = blamed_for(state, event.job, event.node)
    row = leave_devices(state, event.job, event.time, to.PENDING, event.cost, returns=to.ONE_MORE)
    state.health.evictions += 1
    if blamed is not None:
        state.health.blame(row, blamed[0])
        state.health.broken[row] = blamed[1]


def failed(state: StateData, event: ev.JobFailed) -> None:
    blamed = blamed_for(state, event.job, event.node)
    row = leave_devices(state, event.job, event.time, to.PENDING, event.cost, c.J_FAILURES, to.ONE_MORE)
    if blamed is not None:
        state.health.blame(row, blamed[0])


def refused(state: StateData, event: ev.JobRefused) -> None:
    returns = to.STAYS if event.blameless else to.ONE_MORE
    leave_devices(state, event.job, event.time, to.PENDING, returns=returns, ran=False)


def found(state: StateData, event: ev.JobFound) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise StateError(f"job {event.job!r} was found bound while it was not waiting")
    nodes = event.allocation[:, NODE]
    if len(nodes) == 0 or nodes.min() < 0 or nodes.max() >= len(state.nodes):
        raise StateError(f"job {event.job!r} was found bound to nodes that do not exist")
    state.health.broken[row] = state.shapes.counted(state.shape_of(row), event.allocation)


def rejected(state: StateData, event: ev.JobRejected) -> None:
    withdraw(state, state.row_of(event.job), event.time, REJECTED)


def cancelled(state: StateData, event: ev.JobCancelled) -> None:
    row = state.row_of(event.job)
    if row in state.running:
        leave_devices(state, event.job, event.time, CANCELLED)
    else:
        withdraw(state, row, event.time, CANCELLED)


def progressed(state: StateData, event: ev.JobProgressed) -> None:
    row = state.row_of(event.job)
    if row not in state.running:
        raise StateError(f"job {event.job!r} made progress while it was not running")
    progress = state.elastic.get(row)
    if progress is not None:
        progress.settle(state.jobs, row, event.time)
    to.progressed(state.jobs, row, event.time, event.remaining)
    if progress is not None:
        progress.left = event.remaining * progress.ceiling
        progress.turn_to(state.jobs, row, progress.pods, progress.milli)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, event.time)


def demoted(state: StateData, event: ev.JobDemoted) -> None:
    state.jobs[state.row_of(event.job), c.J_LEVEL] = event.level


def protected(state: StateData, event: ev.JobProtected) -> None:
    row = state.row_of(event.job)
    job = state.live.get(row)
    if job is None:
        raise StateError(f"job {event.job!r} has ended and cannot be stopped")
    preemptible = int(job.preemptible and not event.by)
    if preemptible == state.jobs[row, c.J_PREEMPTIBLE]:
        return
    state.jobs[row, c.J_PREEMPTIBLE] = preemptible
    if state.preemptible is not None and row in state.running:
        state.preemptible.add(job.priority, 1 if preemptible else -1)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, event.time)
    if preemptible and row in state.running:  # a waiting job may now get the devices of this one
        state.node_version += 1
        capacity_freed(state, set(state.table[state.running[row][:, NODE], c.POOL].tolist()))


def priced(state: StateData, event: ev.JobPriced) -> None:
    row = state.row_of(event.job)
    if row not in state.live:
        raise StateError(f"job {event.job!r} has ended and cannot be stopped")
    if event.price >= 0:
        state.prices[row] = event.price
    else:
        state.prices.pop(row, None)


def awaits_node(state: StateData, event: ev.JobAwaitsNode) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise StateError(f"job {event.job!r} awaits a node while it is not waiting")
    if event.awaits:
        state.without_node.pop(row, None)
    else:
        state.without_node[row] = None
    state.asked_anew += 1


def limited(state: StateData, event: ev.JobLimited) -> None:
    row, limit = state.row_of(event.job), event.limit
    if row not in state.running:
        raise StateError(f"job {event.job!r} got another time limit while it was not running")
    if not 0 < limit < FOREVER:
        raise StateError(f"job {event.job!r} got the time limit {limit}: not a time")
    job, numbers = state.live[row], state.jobs[row]
    if job.estimate == job.limit and row not in state.elastic:
        done = job.estimate - numbers[c.J_REMAINING] if job.estimate >= 0 else numbers[c.J_ATTAINED]
        numbers[c.J_ESTIMATE], numbers[c.J_REMAINING] = limit, max(limit - done, 0)
        job = replace(job, estimate=limit)
    numbers[c.J_LIMIT] = limit
    state.live[row] = replace(job, limit=limit)
    state.limits_runs = True
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, event.time)


def ordered(state: StateData, event: ev.QueueOrdered) -> None:
    rows = [state.row_of(job) for job in event.jobs]
    state.jobs[rows, c.J_RANK] = np.arange(state.arrivals, state.arrivals + len(rows))
    state.arrivals += len(rows)


def reserved(state: StateData, event: ev.JobReserved) -> None:
    row = state.row_of(event.job)
    if row not in state.pending:
        raise StateError(f"job {event.job!r} got a reservation while it was not waiting")
    if not event.time <= event.start < event.end:
        raise StateError(f"job {event.job!r} got a reservation from {event.start} to {event.end}")
    allocation = event.allocation
    if state.shapes.counts or allocation.shape[1] < WIDTH:
        allocation = state.shapes.counted(state.shape_of(row), allocation)
    state.reserved[row] = Reservation(event.start, event.end, allocation, event.time)


def released(state: StateData, event: ev.JobReleased) -> None:
    if state.reserved.pop(state.row_of(event.job), None) is None:
        raise StateError(f"job {event.job!r} has no reservation to release")


def leave_devices(
    state: StateData, job: str, now: int, status: int, cost: int = 0,
    counted: int = -1, returns: int = to.STAYS, ran: bool = True,
) -> int:  # fmt: skip
    """Free all that a running job holds. The job then waits with `cost` µs more work, or leaves. Returns its row.

    `counted` and `returns` are as for `transitions.stopped`. `ran` is False if the start of the job was refused.
    """
    if not 0 <= cost < FOREVER:
        raise StateError(f"job {job!r} was stopped at a cost of {cost}: not a time")
    row, jobs = state.rows.get(job, -1), state.jobs
    pieces = state.running.pop(row, None)
    if pieces is None:
        raise StateError(f"job {job!r} is not running")
    progress = state.elastic.get(row)
    if progress is not None and ran:
        progress.settle(jobs, row, now)
        progress.costs(cost)
    demands = state.shapes.demands
    to.stopped(
        state.table, state.log, state.pools, jobs, pieces, demands, row, now, status, cost, counted, returns, ran
    )
    state.capacity_version += 1
    if progress is not None:
        progress.rest(jobs, row)
    shape = state.shapes.shapes[jobs.item(row, c.J_SHAPE)]
    if shape.affinity is not None and shape.affinity.group:
        members = state.affinity_members[shape.affinity.group]
        del members[row]
        if not members:
            del state.affinity_members[shape.affinity.group]
    state.quota_usage.stopped(row, now)
    if state.preemptible is not None:
        state.preemptible.stops(jobs, row)
    if status == to.PENDING:
        state.pending[row] = None
        state.waiting_milli += shape.gpu_milli
    else:
        forget(state, row)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, now)
    return row


def withdraw(state: StateData, row: int, now: int, status: int) -> None:
    """Remove a waiting job for good."""
    if row not in state.pending:
        raise StateError(f"job {state.ids[row]!r} is not waiting")
    del state.pending[row]
    state.reserved.pop(row, None)
    forget(state, row)
    state.capacity_version += 1
    state.waiting_milli -= state.shape_of(row).gpu_milli
    to.withdrawn(state.jobs, row, now, status)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, now)


def forget(state: StateData, row: int) -> None:
    """Forget a job that leaves for good. The scheduler stops burst replicas that have lost their base job."""
    del state.live[row]
    state.unwanted.discard(row)
    state.prices.pop(row, None)
    state.without_node.pop(row, None)
    if state.health.bad or state.health.broken:
        state.health.forget(row)
    if row in state.elastic:
        state.elastic.pop(row).leave(state.jobs, row)
    base = state.jobs.item(row, c.J_BASE)
    if base >= 0:
        del state.burst_replicas[base][row]
        if not state.burst_replicas[base] and base not in state.live:
            del state.burst_replicas[base]
    elif row in state.burst_replicas and not state.burst_replicas[row]:
        del state.burst_replicas[row]
