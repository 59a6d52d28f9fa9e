"""Maximum sum of throughputs: the most training steps per second over all jobs."""

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


@dataclass(frozen=True, slots=True)
class Mst(SharePolicy):
    """Shares with the most steps per second, however much work a step of a job is: the fastest jobs go first.

    Source: Gavel, OSDI 2020, section 4.2.
    """

    source: ClassVar[str] = "Gavel, D. Narayanan et al., OSDI 2020"
    tags: ClassVar[Tags] = tagged(SHARES, objective="utilisation", method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        return best_shares(np.array([job.speed for job in jobs]), gangs(jobs), gpus)
