"""The jobs of a journal, and how long each ran."""

from __future__ import annotations

from pathlib import Path

from kant.live.journal_walk import read_journal
from kant.model.event import (
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobFound,
    JobPreempted,
    JobRefused,
    JobStarted,
    JobSubmitted,
)
from kant.model.job import Job
from kant.model.node import ClusterSpec
from kant.optimize.capacity.from_jobs import JobRun


def runs_of(path: Path) -> tuple[ClusterSpec, list[JobRun]]:
    """Return the cluster of a journal, and its jobs in order of arrival.

    The run time of a finished job is the time for which it held resources, over all its starts. The run time of any
    other job is taken from the journal, or is its owner's estimate.
    """
    walk = read_journal(path)
    jobs: dict[str, Job] = {}
    known: dict[str, int] = {}
    began: dict[str, int] = {}
    ran: dict[str, int] = {}
    finished: set[str] = set()
    for line in walk:
        match line:
            case JobSubmitted(job=job):
                jobs[job.id] = job
                known[job.id] = line.runtime if line.runtime >= 0 else job.estimate
            case JobStarted(job=name) | JobFound(job=name):
                began.setdefault(name, line.time)
            case (
                JobFinished(job=name)
                | JobPreempted(job=name)
                | JobEvicted(job=name)
                | JobRefused(job=name)
                | JobFailed(job=name)
                | JobCancelled(job=name)
            ):
                since = began.pop(name, line.time)
                ran[name] = ran.get(name, 0) + line.time - since
                if isinstance(line, JobFinished):
                    finished.add(name)
            case _:
                pass
    return walk.header.cluster, [
        JobRun(job, ran[name] if name in finished else known[name]) for name, job in jobs.items()
    ]
