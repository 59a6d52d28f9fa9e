"""RemainingWork: the remaining work of each job of a what-if, and where that number comes from.

The journal has priority: it gives the run time of a simulated job, and the time that a job of a live cluster ran until
it finished later. For other jobs the remaining work is unknown: they are assumed to run for the median (P50) learned
from jobs of their kind; without it, for their owner's estimate, to their limit, or as long as the median finished job,
in this order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.event import (
    JobEvicted,
    JobFailed,
    JobFinished,
    JobGrown,
    JobPreempted,
    JobRefused,
    JobShrunk,
    JobStarted,
    JobSubmitted,
)
from kant.model.job import Job
from kant.model.placement import PODS, Allocation
from kant.model.status import JobStatus
from kant.model.units import HOUR
from kant.sim.past import Past

Source = Literal["recorded", "learned", "estimate", "limit", "assumed"]
"""The source of a job's run time."""

CHANGES = (JobStarted, JobFinished, JobPreempted, JobEvicted, JobFailed, JobRefused, JobGrown, JobShrunk)
"""Events at which a job starts, ends, or changes its size."""

HALF = 500
"""Permille: the median."""


@dataclass(slots=True)
class RemainingWork:
    """`left` is each job's remaining work at the start of a what-if, microseconds at full speed and size.

    For a job that arrives later this is all of its work. Jobs whose submission states the run time are not in `left`,
    but count in `sources`.
    """

    left: dict[str, int] = field(default_factory=dict)
    sources: Counter[Source] = field(default_factory=Counter)


def work_of(past: Past, state: ClusterState, arrivals: bool) -> RemainingWork:
    """Find the work of the jobs that are live at the end of `past`, in `state`, and of later arrivals."""
    found = RemainingWork()
    recorded = {event.job.id for event in past.events if isinstance(event, JobSubmitted) and event.runtime >= 0}
    coming = [event for event in past.later if isinstance(event, JobSubmitted)] if arrivals else []
    recorded |= {event.job.id for event in coming if event.runtime >= 0}
    needed = {job.id for job in state.live.values()} | {event.job.id for event in coming}
    seen = {} if recorded >= needed else seen_later(past, state)
    usual = _usual(state)
    for row, job in state.live.items():
        if job.id in recorded:
            found.sources["recorded"] += 1
        else:
            _keep(found, job, seen, *_of_live(state, row, past.now, usual))
    for event in coming:
        if event.job.id in recorded:
            found.sources["recorded"] += 1
        else:
            _keep(found, event.job, seen, *_guess(state, event.job, _kind(state, event.job), 0, usual))
    return found


def _keep(found: RemainingWork, job: Job, seen: dict[str, int], left: int, source: Source) -> None:
    if job.id in seen:
        left, source = seen[job.id], "recorded"
    found.left[job.id] = max(left, 0)
    found.sources[source] += 1


def _of_live(state: ClusterState, row: int, now: int, usual: int) -> tuple[int, Source]:
    since, attained = state.jobs[row, [c.J_SINCE, c.J_ATTAINED]].tolist()
    kind = int(state.jobs[row, c.J_KIND]) if state.history is not None else -1
    running = now - since if row in state.running else 0
    progress = state.elastic.get(row)
    elapsed = attained + running if progress is None else progress.done(-1, running) // progress.ceiling
    return _guess(state, state.live[row], kind, elapsed, usual)


def _guess(state: ClusterState, job: Job, kind: int, elapsed: int, usual: int) -> tuple[int, Source]:
    """Return the remaining run time of a job that has run for `elapsed`.

    A job that outlives its estimate is assumed to run twice as long, then twice as long again
    (`queueing/estimates.py`).
    """
    source: Source
    if state.history is not None and kind >= 0 and state.history.quantile(kind, HALF) > 0:
        left, source = state.history.remaining(kind, elapsed, HALF), "learned"
    else:
        said: tuple[tuple[Source, int], ...] = (("estimate", job.estimate), ("limit", job.limit), ("assumed", usual))
        source, span = next(pair for pair in said if pair[1] > 0)
        while span <= elapsed:
            span *= 2
        left = span - elapsed
    return (min(left, max(job.limit - elapsed, 1)) if job.limit > 0 else left), source


def _kind(state: ClusterState, job: Job) -> int:
    """Return the kind of a job that has not arrived yet; -1 if its queue or its user is new."""
    queue = state.quota_usage.queue_of(job.queue, job.user)
    if state.history is None or queue not in state.queues or (job.user and job.user not in state.users):
        return -1
    user = state.users[job.user] if job.user else -1
    return state.history.kind(state.queues[queue], user, job.name, job.gpu_milli)


def _usual(state: ClusterState) -> int:
    """Return the median run time of finished jobs; an hour if none has finished."""
    jobs = state.jobs[: len(state.ids)]
    ran = sorted(jobs[jobs[:, c.J_STATUS] == JobStatus.FINISHED, c.J_ATTAINED].tolist())
    return max(ran[len(ran) // 2], 1) if ran else HOUR


def seen_later(past: Past, state: ClusterState) -> dict[str, int]:
    """Return the remaining work of jobs that finished later: how long they ran, less the work they repeated.

    Work that an elastic gang does with fewer than all pods counts in proportion.
    """
    coming = (event.job for event in past.later if isinstance(event, JobSubmitted))
    most = {job.id: job.pods for job in (*state.live.values(), *coming) if is_elastic(job)}
    runs = {state.ids[row]: (past.now, _size(most, state.ids[row], held)) for row, held in state.running.items()}
    done: dict[str, int] = {}
    found: dict[str, int] = {}
    for event in past.later:
        if not isinstance(event, CHANGES):
            continue
        job = event.job
        since, pods = runs.pop(job, (event.time, 0))
        again = 0 if isinstance(event, JobStarted | JobFinished | JobRefused) else event.cost
        done[job] = done.get(job, 0) + (event.time - since) * pods - again * most.get(job, 1)
        if isinstance(event, JobFinished):
            found[job] = done[job] // most.get(job, 1)
        elif isinstance(event, JobStarted):
            runs[job] = event.time, _size(most, job, event.allocation)
        elif isinstance(event, JobGrown | JobShrunk):
            change = int(event.allocation[:, PODS].sum())
            runs[job] = event.time, pods + (change if isinstance(event, JobGrown) else -change)
    return found


def is_elastic(job: Job) -> bool:
    """Return whether the job's gang can also run with fewer pods than all."""
    return any(group.least < group.count for group in job.groups)


def _size(most: dict[str, int], job: str, held: Allocation) -> int:
    return int(held[:, PODS].sum()) if job in most else 1
