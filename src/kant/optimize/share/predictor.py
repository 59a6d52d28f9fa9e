"""The expected remaining run time of a job whose future batch sizes are unknown."""

from __future__ import annotations

from kant.optimize.share.training import Training

DONE = 1.0
"""The expected seconds of a job that has trained all its epochs."""


def expected_left(job: Training) -> float:
    """The seconds that a job is expected to take alone, from the epochs that it has trained at each batch size.

    A Dirichlet prior gives each batch size of its profile the same share of the epochs; the observed epochs, including
    the present one, are added. The expected epochs of each size, less those trained, determine the split of the
    remaining epochs. Source: the predictor of Shockwave, arXiv 2210.00093, section 5.
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
