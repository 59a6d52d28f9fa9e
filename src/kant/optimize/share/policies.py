"""The policies that share GPUs in rounds, each a small frozen class, and all of them by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.by_shares import Memory, SharePolicy
from kant.optimize.share.interior import Floats, inside
from kant.optimize.share.policy import SHARES, RoundPolicy
from kant.optimize.share.shockwave import ShockwaveRounds
from kant.optimize.share.training import TrainingProgress


def best_shares(
    value: Floats, gpus_each: Floats, gpus: int, floors: Floats | None = None, speeds: Floats | None = None
) -> list[float]:
    """Shares x from 0 to 1 with gpus_each·x <= gpus, at least `floors`, and maximum value·x, inside the optimal set.

    `speeds` are the units of the rows of the floors; they move the point inside (published programs count steps a
    second). If the solver fails, shares are the floors, and the rest goes to the most valuable jobs first.
    """
    n = len(value)
    one = np.eye(n)
    rows, limits = [-one, gpus_each[None, :], one], [np.zeros(n), np.array([float(gpus)]), np.ones(n)]
    if floors is not None:
        unit = np.ones(n) if speeds is None else speeds
        rows.append(-np.diag(unit))
        limits.append(-floors * unit)
    try:
        found = inside(-value, np.vstack(rows), np.concatenate(limits))
    except ArithmeticError:
        found = _greedy(value, gpus_each, gpus, np.zeros(n) if floors is None else np.clip(floors, 0.0, 1.0))
    return [float(share) for share in np.clip(found, 0.0, 1.0)]


def _greedy(value: Floats, gpus_each: Floats, gpus: int, floors: Floats) -> Floats:
    shares, left = floors.copy(), gpus - float(floors @ gpus_each)
    for i in np.argsort(-value / gpus_each, kind="stable").tolist():
        more = min(1.0 - shares[i], max(left, 0.0) / gpus_each[i])
        shares[i] += more
        left -= more * gpus_each[i]
    return shares


def gangs(jobs: Sequence[TrainingProgress]) -> Floats:
    """The GPUs of each job."""
    return np.array([job.gpus for job in jobs], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class MaxMin(SharePolicy):
    """Shares of time that maximise the least weighted GPU-time; a gang of four has a quarter of the time of one GPU.

    Source: least attained service in Gavel, D. Narayanan et al., OSDI 2020, section 4.1.
    """

    source: ClassVar[str] = "Gavel, D. Narayanan et al., OSDI 2020"
    tags: ClassVar[Tags] = tagged(SHARES, knowledge="none", method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        each = gangs(jobs)
        n = len(jobs)
        one = np.eye(n)
        weights = np.array([job.weight for job in jobs])
        rows = np.zeros((3 * n + 1, n + 1))  # the last variable is the least
        rows[:n, n], rows[:n, :n] = 1.0, -np.diag(each / weights)
        rows[n : 2 * n, :n], rows[2 * n, :n], rows[2 * n + 1 :, :n] = -one, each, one
        limits = np.concatenate([np.zeros(2 * n), [float(gpus)], np.ones(n)])
        try:
            found = inside(np.array([0.0] * n + [-1.0]), rows, limits)[:n]
        except ArithmeticError:
            found = gpus * weights / float(weights.sum()) / each
        return [float(share) for share in np.clip(found, 0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class GandivaFair(SharePolicy):
    """Every job has the share of one GPU in an equal division, in proportion to its weight, at most all of the time.

    Source: S. Chaudhary et al., EuroSys 2020, as in Shockwave's simulator.
    """

    source: ClassVar[str] = "Gandiva-Fair, S. Chaudhary et al., EuroSys 2020"
    tags: ClassVar[Tags] = tagged(SHARES, knowledge="none")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        weights = sum(job.weight for job in jobs)
        return [min(1.0, gpus * job.weight / weights) for job in jobs]


HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Themis(SharePolicy):
    """Shares that minimise the largest ratio of a job's expected time to its time with an equal share of its own.

    The rest of the run is estimated at the present speed, and so is the progress under an equal share, updated at each
    computation. Source: K. Mahajan et al., NSDI 2020, as a program over shares in Gavel, OSDI 2020, section 4.2.
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
        """The shares that each job needs for the least worst ratio."""
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


SOONEST, LATEST, NEAR = 100.0, 1e6, 1.05
"""Seconds between which the end is searched by bisection, to within five per cent."""


@dataclass(frozen=True, slots=True)
class MinTotalDuration(SharePolicy):
    """Shares with which all present jobs end at the earliest possible time, at their present speeds.

    The open-shop bound: no earlier than the longest job, nor than all work over all GPUs. Shockwave calls it OSSP
    (open-shop scheduling problem) in its comparisons. Source: Gavel, OSDI 2020, section 4.2.
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


@dataclass(frozen=True, slots=True)
class Mst(SharePolicy):
    """Shares with the most steps per second, whatever a step of a job is worth: the fastest jobs go first.

    Source: Gavel, OSDI 2020, section 4.2.
    """

    source: ClassVar[str] = "Gavel, D. Narayanan et al., OSDI 2020"
    tags: ClassVar[Tags] = tagged(SHARES, objective="utilisation", method="solver")

    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        return best_shares(np.array([job.speed for job in jobs]), gangs(jobs), gpus)


@dataclass(frozen=True, slots=True)
class AlloX(SharePolicy):
    """Jobs in the order of an assignment to GPUs and positions; on equal GPUs the shortest go first.

    A one-GPU job that has been given a GPU keeps it to its end. Only the oldest share `oldest` of the waiting jobs
    takes part, or as many jobs as there are free GPUs. AlloX knows one GPU a job; a gang has a share divided by its
    GPUs, as in Shockwave's simulator. Source: T. N. Le et al., EuroSys 2020.
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


POLICIES: dict[str, RoundPolicy] = {
    "shockwave": ShockwaveRounds(),
    "shockwave-greedy": ShockwaveRounds(solver=False),
    "max-min": MaxMin(),
    "gandiva-fair": GandivaFair(),
    "themis": Themis(),
    "min-total-duration": MinTotalDuration(),
    "mst": Mst(),
    "allox": AlloX(),
}
"""The policies by name, in the order in which comparisons list them."""

ALSO = {"ossp": "min-total-duration", "gavel": "max-min", "finish-time-fairness": "themis"}
"""Other names under which they are known."""
