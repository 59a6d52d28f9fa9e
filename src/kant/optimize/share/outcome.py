"""The outcome of a run in rounds: its total time, the time of each job, and which jobs were treated unfairly."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kant.optimize.share.training import TrainingProgress

UNFAIR = 1.05
"""A finish-time fairness above this counts as unfair (Shockwave, section 7)."""


class Fairness(Struct, frozen=True):
    """Finish-time fairness (Themis, NSDI 2020): a job's time divided by its time with an equal share of the cluster.

    The equal share is the cluster divided by the number of jobs in the trace, but at most the GPUs that the job
    requests. `unfair_share` is the share of jobs with a fairness above 1.05.
    """

    worst: float
    mean: float
    unfair_share: float


class SharedJobOutcome(Struct, frozen=True):
    """The arrival and the end of a job, in seconds, and its finish-time fairness."""

    name: str
    queue: str
    gpus: int
    arrival_s: float
    end_s: float
    ftf: float


class QueueOutcome(Struct, frozen=True):
    """The jobs of one queue: their mean completion time, and their mean and worst finish-time fairness."""

    name: str
    jobs: int
    jct_s: float
    ftf_mean: float
    ftf_worst: float


class SharingOutcome(Struct, frozen=True):
    """A run in rounds. `jct_s` is the mean job completion time. `busy_share` is the share of the GPU time, up to the
    last end, in which jobs made progress."""

    makespan_s: float
    jct_s: float
    ftf: Fairness
    jobs: int
    gpus: int
    rounds: int
    busy_share: float
    queues: tuple[QueueOutcome, ...]
    each: tuple[SharedJobOutcome, ...]
    notes: tuple[str, ...] = ()


def outcome(every: Sequence[TrainingProgress], gpus: int, rounds: int, used: float, note: str) -> SharingOutcome:
    """The outcome for jobs that have all ended. `used` is the GPU-seconds in which they made progress; `note` is the
    policy's note."""
    crowd = max(1.0, len(every) / gpus)
    each = []
    for at in every:
        ftf = round((at.ended - at.job.arrival) / (at.job.exclusive * crowd), 5)
        each.append(SharedJobOutcome(at.job.name, at.job.queue, at.gpus, at.job.arrival, at.ended, ftf))
    ratios = [job.ftf for job in each]
    makespan = max(job.end_s for job in each)
    return SharingOutcome(
        makespan,
        sum(job.end_s - job.arrival_s for job in each) / len(each),
        Fairness(max(ratios), sum(ratios) / len(each), sum(ratio > UNFAIR for ratio in ratios) / len(each)),
        len(each),
        gpus,
        rounds,
        used / (gpus * makespan) if makespan else 0.0,
        tuple(_queue(name, [job for job in each if job.queue == name]) for name in sorted({job.queue for job in each})),
        tuple(each),
        (note,) if note else (),
    )


def _queue(name: str, jobs: Sequence[SharedJobOutcome]) -> QueueOutcome:
    ratios = [job.ftf for job in jobs]
    jct = sum(job.end_s - job.arrival_s for job in jobs) / len(jobs)
    return QueueOutcome(name, len(jobs), jct, sum(ratios) / len(jobs), max(ratios))
