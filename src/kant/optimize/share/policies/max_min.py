"""Max-min fairness: the least GPU-time of any job is as large as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.fair_shares import gangs
from kant.optimize.share.interior import inside
from kant.optimize.share.policy import SHARES
from kant.optimize.share.training import TrainingProgress


@dataclass(frozen=True, slots=True)
class MaxMin(SharePolicy):
    """Shares of time that maximise the least weighted GPU-time; a gang on four GPUs runs a quarter as long.

    Source: least attained service in Gavel, D. Narayanan et al., OSDI 2020, section 4.1.
    """

    source: ClassVar[str] = "Gavel, D. Narayanan et al., OSDI 2020"
    tags: ClassVar[Tags] = tagged(SHARES, knowledge="none", method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        each = gangs(jobs)
        n = len(jobs)
        one = np.eye(n)
        weights = np.array([job.weight for job in jobs])
        rows = np.zeros((3 * n + 1, n + 1))  # the last variable is the least GPU-time
        rows[:n, n], rows[:n, :n] = 1.0, -np.diag(each / weights)
        rows[n : 2 * n, :n], rows[2 * n, :n], rows[2 * n + 1 :, :n] = -one, each, one
        limits = np.concatenate([np.zeros(2 * n), [float(gpus)], np.ones(n)])
        try:
            found = inside(np.array([0.0] * n + [-1.0]), rows, limits)[:n]
        except ArithmeticError:
            found = gpus * weights / float(weights.sum()) / each
        return [float(share) for share in np.clip(found, 0.0, 1.0)]
