"""Minimum total duration: all present jobs end as early as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.fair_shares import best_shares, gangs
from kant.optimize.share.policy import SHARES
from kant.optimize.share.training import TrainingProgress

SOONEST, LATEST, NEAR = 100.0, 1e6, 1.05
"""The range of seconds in which the end is searched by bisection, and the precision: five per cent."""


@dataclass(frozen=True, slots=True)
class MinTotalDuration(SharePolicy):
    """Shares with which all present jobs end as early as possible, at their present speeds.

    The open-shop bound applies: no earlier than the longest job, nor than all work divided by all GPUs. Shockwave calls
    it OSSP (open-shop scheduling problem) in its comparisons. Source: Gavel, OSDI 2020, section 4.2.
    """

    source: ClassVar[str] = "Gavel, D. Narayanan et al., OSDI 2020; OSSP in Shockwave, arXiv 2210.00093"
    tags: ClassVar[Tags] = tagged(SHARES, objective="makespan", method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        each = gangs(jobs)
        left = np.array([job.seconds_left for job in jobs])
        soonest, latest = SOONEST, LATEST
        needed = max(float(left.max()), float(left @ each) / gpus)
        while needed > latest:
            soonest, latest = latest, latest * 10
        while NEAR * soonest < latest:
            middle = (soonest + latest) / 2
            soonest, latest = (soonest, middle) if needed <= middle else (middle, latest)
        return best_shares(np.zeros(len(jobs)), each, gpus, left / latest, np.array([job.speed for job in jobs]))
