"""What the queueing half asks of its neighbours, as protocols: the placement, and the plan under way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import Holders, Weights
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Trial
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import Allocation
from kant.queueing.admission import Admission
from kant.queueing.forecast import Calendar


class ReplacedGang(Protocol):
    """A gang made whole again, and how many of its pods stay in place. `placement/node_replacement.py` has one."""

    @property
    def allocation(self) -> Allocation: ...
    @property
    def kept(self) -> int: ...


class Draft(Protocol):
    """A copy of the nodes on which somebody tries what capacity comes free where. `placement/draft.py` has one."""

    table: Table

    def copy(self) -> Draft: ...
    def clear(
        self, places: Table, demand: int, left: int, holders: Holders, weights: Weights, cap: int
    ) -> tuple[Table, NDArray[np.bool_]]: ...
    def clear_one(
        self, demand: int, holders: Holders, heavy: Table, rows: Table, weights: Weights, cap: int
    ) -> Table | None: ...
    def put(self, node: int, demand: int, pods: int) -> None: ...
    def free(self, pieces: Allocation) -> None: ...


class Placer(Protocol):
    """Where something fits. Placements stay taken on `trial` until it is rolled back."""

    trial: Trial

    def place(self, shape: Shape, job_row: int = 0) -> Allocation | NoFit: ...

    def clear_of_bookings(
        self, shape: Shape, allocation: Allocation, booked: Mapping[int, int], without: Collection[int]
    ) -> Allocation: ...

    def missing(self, shape: Shape, job_row: int = 0) -> int: ...

    def may_fit(self, shape: Shape) -> bool: ...

    def replace_nodes(
        self, shape: Shape, held: Allocation, bad: tuple[int, ...], job_row: int, bound: bool
    ) -> ReplacedGang | None: ...

    def never_fits(self, shape: Shape) -> NeverFits | None: ...

    def extend(self, shape: Shape, held: Allocation, job_row: int = 0) -> Allocation | NoFit: ...

    def draft(self) -> Draft: ...

    @property
    def calendar(self) -> Calendar: ...


class NotNow(NamedTuple):
    """Evicting running jobs does not let a job start in this cycle.

    `retry_at` is when a running job reaches its minimum run time and the job may fit in its place; -1 where no such
    time is known. With `definitive` it is proven that nothing else helps before capacity or a quota changes; without
    it the search may have missed victims, and the job is worth another try in the next cycle. With `nobody` no running
    job is of lower priority or beyond its quota (`ClusterState.eviction_bounds`), so the job may evict nobody.
    """

    retry_at: int = -1
    definitive: bool = True
    nobody: bool = False

    def __and__(self, other: NotNow) -> NotNow:
        """What holds where both are said of one job."""
        known = [time for time in (self.retry_at, other.retry_at) if time >= 0]
        return NotNow(min(known, default=-1), self.definitive and other.definitive, self.nobody and other.nobody)


NOT_NOW = NotNow()
"""Evicting does not help, and that is proven."""

NOBODY = NotNow(nobody=True)
"""There is nobody to evict, or no preemption."""


class PlanSoFar(Protocol):
    """What the plan under way changes for those that run. `CyclePlan` is one."""

    state: ClusterState
    now: int
    placer: Placer
    stopped: dict[int, None]
    shrunk: dict[int, None]
    bases: set[int]
    takes_back: bool
    by_share: bool

    @property
    def admission(self) -> Admission: ...
