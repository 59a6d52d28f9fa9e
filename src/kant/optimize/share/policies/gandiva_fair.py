"""Gandiva-Fair: an equal share of time for every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.policy import SHARES
from kant.optimize.share.training import TrainingProgress


@dataclass(frozen=True, slots=True)
class GandivaFair(SharePolicy):
    """A job's share of time is GPUs x its weight / all weights, at most 1, however many GPUs the job requests.

    Source: S. Chaudhary et al., EuroSys 2020, as in Shockwave's simulator.
    """

    source: ClassVar[str] = "Gandiva-Fair, S. Chaudhary et al., EuroSys 2020"
    tags: ClassVar[Tags] = tagged(SHARES, knowledge="none")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        weights = sum(job.weight for job in jobs)
        return [min(1.0, gpus * job.weight / weights) for job in jobs]
