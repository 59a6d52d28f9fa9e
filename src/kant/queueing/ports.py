"""Protocols for what the queueing half uses from its neighbours: the placement, and the current plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import Candidates, PoolColumns
from kant.cluster.quota_condition import QuotaCondition
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Trial
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import Allocation
from kant.queueing.admission import Admission

if TYPE_CHECKING:
    from kant.queueing.forecast import Calendar


class ReplacedGang(Protocol):
    """A completed gang, and how many of its pods stay in place. Implemented in `placement/node_replacement.py`."""

    @property
    def allocation(self) -> Allocation: ...
    @property
    def kept(self) -> int: ...


class Asked(Protocol):
    """What a search for victims asks about a set of candidates. The set is given as the bits of one integer."""

    which: Table
    counts: Table

    def suffices(self, which: int) -> bool: ...
    def admitted(self, which: int) -> bool: ...


class Draft(Protocol):
    """A copy of the nodes on which the search for victims frees capacity. Implemented in `placement/draft.py`."""

    table: Table

    def victims(
        self, groups: Table, candidates: Candidates, cap: int, trials: int, few: bool, asked: Asked, monotone: bool
    ) -> Table | None: ...
    def counted_victims(
        self, groups: Table, asked: int, own: NDArray[np.bool_], domains: Table, pool: PoolColumns,
        condition: QuotaCondition, cap: int, exact: int, trials: int,
    ) -> tuple[Table, bool, bool]: ...  # fmt: skip
    def on_one_node(self, groups: Table, candidates: Candidates, cap: int) -> Table | None: ...


class Placer(Protocol):
    """Places gangs on nodes and devices. Placements stay on `trial` until it is rolled back."""

    trial: Trial

    def place(self, shape: Shape, job_row: int = 0) -> Allocation | NoFit: ...

    def clear_of_bookings(
        self, shape: Shape, allocation: Allocation, booked: Mapping[int, int], without: Collection[int]
    ) -> Allocation: ...

    def missing(self, shape: Shape, job_row: int = 0) -> int: ...

    def counted_domains(self, shape: Shape) -> Table | None: ...

    def nodes_of(self, shape: Shape) -> NDArray[np.bool_]: ...

    def fits_without(self, shape: Shape, rows: Table) -> bool | None: ...

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

    `retry_at` is when a running job reaches its minimum run time and may be evicted for the job, µs; -1: unknown.
    `definitive`: it is proven that nothing else helps before capacity or a quota changes. Otherwise the search may have
    missed victims, and the job is tried again in the next cycle. `no_candidates`: no running job is of lower priority
    or beyond its quota (`ClusterState.eviction_bounds`).
    """

    retry_at: int = -1
    definitive: bool = True
    no_candidates: bool = False

    def __and__(self, other: NotNow) -> NotNow:
        """Combine two results for one job into what holds for both."""
        known = [time for time in (self.retry_at, other.retry_at) if time >= 0]
        return NotNow(
            min(known, default=-1), self.definitive and other.definitive, self.no_candidates and other.no_candidates
        )


NOT_NOW = NotNow()
"""Eviction does not help, and that is proven."""

NO_CANDIDATES = NotNow(no_candidates=True)
"""There is no job to evict, or no preemption."""


class PlanSoFar(Protocol):
    """What the current plan changes for running jobs. Implemented by `CyclePlan`."""

    state: ClusterState
    now: int
    placer: Placer
    stopped: dict[int, None]
    shrunk: dict[int, None]
    bases: set[int]
    preempts_passing: bool
    by_share: bool

    @property
    def weak(self) -> PlanSoFar: ...
    @property
    def admission(self) -> Admission: ...
