"""Stretch: by the time at which a job's stretch (its response time over its run time) reaches a bound."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kant.cluster.columns import J_ATTAINED, J_MILLI, J_P50, J_P90, J_SINCE, J_STATUS, J_SUBMIT, LEARNED_WIDTH, Table
from kant.model.status import JobStatus
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER, GPU, HOUR
from kant.queueing.order import Order


class Stretch(Order, frozen=True, tag="stretch"):
    """By submission plus `factor` times the expected run time: then the job's stretch reaches `factor`.

    The expected run time is the learned one (`[estimates]`) that is not exceeded with `probability` (percent; 0: no
    prediction), but at least twice the largest of 1, 2, 4, … hours that the job has already run. So short jobs pass
    long ones, and a job that runs on falls behind; a late head of `backfill` may then preempt it. With `large_gpus`,
    jobs of at least that many GPUs use `large_factor` instead: the smaller it is, the fewer jobs pass these large jobs.
    `large_least_h` hours are added on top for large jobs, and at most `large_most_h` in all (0: `most_h`).

    The bound: at most `most_h` hours are added, so no job submitted more than `most_h` after another of its priority
    goes before it.
    """

    factor: Annotated[int, Meta(ge=1, le=1000)] = 10
    probability: Literal[0, 50, 90] = 50
    large_gpus: Annotated[int, Meta(ge=0, le=10**6)] = 0
    large_factor: Annotated[int, Meta(ge=0, le=1000)] = 1
    large_least_h: Annotated[int, Meta(ge=0, le=10**6)] = 0
    large_most_h: Annotated[int, Meta(ge=0, le=10**6)] = 0
    most_h: Annotated[int, Meta(ge=1, le=10**6)] = 168

    source: ClassVar[str] = "deadlines of M. A. Bender et al., Flow and stretch metrics, SODA 1998; the bound is ours"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="jct", knowledge="learned")
    outgrown: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.large_least_h <= (self.large_most_h or self.most_h) <= self.most_h:
            raise ValueError("large_least_h must be at most large_most_h, and that at most most_h")

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        expected = np.maximum(self._predicted(jobs, rows), 2 * _in_doubling_hours(_attained(jobs, rows, now)))
        least, most = self._bounds(jobs, rows)
        added = least + np.minimum(expected, self.most_h * HOUR) * self._factors(jobs, rows)
        keys: NDArray[Any] = jobs[rows, J_SUBMIT] + np.minimum(added, most)
        return keys

    def falls_behind(self, jobs: Table, rows: Table, key: int, now: int) -> Table:
        base, most = self._bounds(jobs, rows)
        least = key - jobs[rows, J_SUBMIT] - base + 1  # what must be added on top
        hours = -(
            -least // (2 * np.maximum(self._factors(jobs, rows), 1) * HOUR)
        )  # this many hours suffice, whatever was predicted
        steps = np.where(hours > 1, 1 << _bits(hours - 1), 1) * HOUR
        attained = _attained(jobs, rows, now)
        times = np.where(
            (least > most - base) | (self._factors(jobs, rows) == 0),
            FOREVER,
            now + np.maximum(steps - attained, 0),
        )
        behind = self.keys(jobs, rows, now) > key
        return np.where(behind, now, np.where(times <= now, FOREVER, times))

    def _bounds(self, jobs: Table, rows: Table) -> tuple[Table, Table]:
        """Return the least and the most that is added to each job's submission, µs."""
        large = (jobs[rows, J_MILLI] >= self.large_gpus * GPU) & (self.large_gpus > 0)
        least: Table = np.where(large, self.large_least_h, 0) * HOUR
        most: Table = np.where(large & (self.large_most_h > 0), self.large_most_h, self.most_h) * HOUR
        return least, most

    def _factors(self, jobs: Table, rows: Table) -> Table:
        """Return the factor of each job's expected run time."""
        if not self.large_gpus:
            return np.full(len(rows), self.factor, dtype=np.int64)
        large = jobs[rows, J_MILLI] >= self.large_gpus * GPU
        return np.where(large, self.large_factor, self.factor)

    def _predicted(self, jobs: Table, rows: Table) -> Table:
        if not self.probability or jobs.shape[1] < LEARNED_WIDTH:
            return np.zeros(len(rows), dtype=np.int64)
        promised: Table = np.maximum(jobs[rows, J_P50 if self.probability == 50 else J_P90], 0)
        return promised


def _attained(jobs: Table, rows: Table, now: int) -> Table:
    """Return how long each job has run so far, microseconds."""
    running = jobs[rows, J_STATUS] == JobStatus.RUNNING
    attained: Table = jobs[rows, J_ATTAINED] + np.where(running, now - jobs[rows, J_SINCE], 0)
    return attained


def _in_doubling_hours(attained: Table) -> Table:
    """Return the largest of 0, 1, 2, 4, … hours that each has reached, in microseconds."""
    hours = attained // HOUR
    steps: Table = np.where(hours > 0, (1 << _bits(hours)) >> 1, 0) * HOUR
    return steps


def _bits(numbers: Table) -> Table:
    """Return the bit length of each number; 0 for numbers below 1."""
    bits: Table = np.frexp(np.maximum(numbers, 0).astype(np.float64))[1].astype(np.int64)  # exact below 2**53
    return bits
