"""How long a job will still take, when nobody knows what its batch size will be."""

from __future__ import annotations

from kant.optimize.share.training import Training

DONE = 1.0
"""Seconds that are expected of a job which has trained all its epochs."""


def expected_left(job: Training) -> float:
    """Seconds that a job is expected to take alone, from the epochs that it has trained at each batch size.

    A Dirichlet prior gives each batch size of its profile the same part of the epochs; what has been seen, the present
    epoch among it, is added. What is then expected of each, less what is over, shares out the epochs that are left.
    Source: the predictor of Shockwave, arXiv 2210.00093, section 5.
    """
    whole = job.job.epoch_count
    left = whole - job.epoch
    if left <= 0:
        return DONE
    seconds = {run.batch: run.seconds for run in job.job.epochs}
    seconds[job.batch] = job.job.samples / job.batch / job.speed
    seen = dict(job.trained)
    seen[job.batch] = seen.get(job.batch, 0.0) + 1.0
    sizes = sorted(seconds.keys() | seen.keys())
    prior = whole / len(sizes)
    counted = whole + sum(seen.values())
    open_epochs = {}
    for batch in sizes:
        had = seen.get(batch, 0.0)
        open_epochs[batch] = max(0.0, whole * (prior + had) / counted - had)
    total = sum(open_epochs.values())
    if total <= 0:
        return left * seconds[job.batch]
    return left / total * sum(epochs * seconds.get(batch, seconds[job.batch]) for batch, epochs in open_epochs.items())
