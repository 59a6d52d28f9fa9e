"""Couples run time to size: durations keep their overall distribution, and each size keeps its GPU-time.

Published traces give the distribution of durations over all jobs and the GPU-time of each size, not their joint
distribution. The simplest joint distribution with both is proportional odds (McCullagh, "Regression Models for Ordinal
Data", 1980): a job of size g has the score b_g + logistic noise, and its duration is the quantile of all durations at
the score's rank. All durations are then right for any shifts b, which are chosen to give each size its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from kant.workload.generate.law import Floats, Mixture

_SCORES = np.linspace(-32.0, 32.0, 6401)
_FARTHEST = 8.0
_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Coupling:
    """The shift of each size, the log-duration at each score of the grid, and the mean seconds of each size."""

    shifts: Floats
    log_seconds: Floats
    means: Floats

    def draw(self, rng: Generator, size: NDArray[np.int64]) -> Floats:
        """Draw the seconds of jobs; `size` has the index of each job's size."""
        scores = self.shifts[size] + rng.logistic(size=len(size))
        return np.exp(np.interp(scores, _SCORES, self.log_seconds))


def couple(law: Mixture, jobs: Floats, gpu_time: Floats, gpus: Floats) -> Coupling:
    """Return the coupling in which size i has `jobs[i]` of all jobs, and GPU-time in proportion to `gpu_time[i]`.

    `gpus` are the GPUs of each size. If durations are too short for the GPU-time of a size, its shift stops at a bound,
    and the size uses less GPU-time.
    """
    jobs = jobs / jobs.sum()
    relative = gpu_time / (jobs * gpus)
    shifts = np.zeros(len(jobs))
    made = _at(law, jobs, shifts)
    for _ in range(_ROUNDS if len(jobs) > 1 else 0):
        target = relative * (made.means @ jobs) / (relative @ jobs)
        off = np.log(target / made.means)
        if np.abs(off).max() < 1e-4:
            break
        shifts = np.clip(shifts + 0.7 * off, -_FARTHEST, _FARTHEST)
        made = _at(law, jobs, shifts - shifts @ jobs)
    return made


def _at(law: Mixture, jobs: Floats, shifts: Floats) -> Coupling:
    below = 1.0 / (1.0 + np.exp(shifts[:, None] - _SCORES[None, :]))
    log_seconds = law.log_quantile(jobs @ below)
    density = below * (1.0 - below)
    means = density @ np.exp(log_seconds) / density.sum(axis=1)
    return Coupling(shifts, log_seconds, means)
