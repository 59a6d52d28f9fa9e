"""Themis: the worst finish-time fairness is as small as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.fair_shares import best_shares, gangs
from kant.optimize.share.interior import Floats
from kant.optimize.share.policy import SHARES
from kant.optimize.share.training import TrainingProgress

HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Themis(SharePolicy):
    """Shares that minimise the largest ratio of a job's expected time to its time with an equal share of the cluster.
    The remaining time, and the progress under an equal share, are estimated at the present speed. Source: K. Mahajan et
    al., NSDI 2020, as a program over shares in Gavel, OSDI 2020, section 4.2.
    """

    source: ClassVar[str] = "Themis, K. Mahajan et al., NSDI 2020"
    tags: ClassVar[Tags] = tagged(SHARES, method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        each = gangs(jobs)
        weight = sum(job.weight for job in jobs)
        alone = []
        for job in jobs:
            number, left = job.number, job.steps_left
            if number in memory.steps:
                since = (memory.steps[number] - left) / memory.speed[number]
                memory.alone[number] = memory.alone.get(number, 0.0) + since
            memory.steps[number] = left
            memory.speed[number] = job.speed * min(1.0, gpus * job.weight / weight / job.gpus)
            alone.append(memory.alone.get(number, 0.0) + left / memory.speed[number])
        waited = np.array([now - job.job.arrival for job in jobs])
        left_s = np.array([job.seconds_left for job in jobs])
        floors = self.floors(np.array(alone), waited, left_s, each, gpus)
        return best_shares(np.zeros(len(jobs)), each, gpus, floors)

    def floors(self, alone: Floats, waited: Floats, left: Floats, each: Floats, gpus: int) -> Floats:
        """The share that each job needs so that the worst ratio is as small as possible."""
        low, high = 0.0, 1e6
        for _ in range(HALVINGS):
            ratio = (low + high) / 2
            rest = ratio * alone - waited
            needs = np.where(rest > 0, left / np.maximum(rest, 1e-12), np.inf)
            if (needs <= 1).all() and float(each @ needs) <= gpus:
                high = ratio
            else:
                low = ratio
        result: Floats = np.minimum(left / (high * alone - waited), 1.0)
        return result
