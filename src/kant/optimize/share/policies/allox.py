"""AlloX: the least sum of completion times, in which jobs that have been given a GPU keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.policy import SHARES
from kant.optimize.share.training import TrainingProgress


@dataclass(frozen=True, slots=True)
class AlloX(SharePolicy):
    """Jobs in the order of an optimal assignment to GPUs and positions; on equal GPUs the shortest go first.

    A one-GPU job that has been given a GPU keeps it to its end. Of the waiting jobs only the fraction `oldest` that
    arrived first takes part, or as many jobs as there are free GPUs. AlloX supports one GPU per job; a gang has its
    share divided by its GPUs, as in Shockwave's simulator. Source: T. N. Le et al., EuroSys 2020.
    """

    oldest: float = 0.2
    source: ClassVar[str] = "AlloX, T. N. Le et al., EuroSys 2020"
    tags: ClassVar[Tags] = tagged(SHARES, objective="jct")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        before = memory.shares
        open = sorted(
            (job for job in jobs if before.get(job.number) != 1.0), key=lambda job: (job.job.arrival, job.number)
        )
        free = gpus - (len(jobs) - len(open))
        open = open[: max(int(self.oldest * len(open)), free)]
        first = {job.number for job in sorted(open, key=lambda job: (job.seconds_left, job.number))[: max(free, 0)]}
        return [1.0 / job.gpus if job.number in first else before.get(job.number, 0.0) for job in jobs]
