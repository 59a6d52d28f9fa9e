"""Entitlements: which running jobs are in quota, and which borrow.

A queue is entitled to its nominal quota, or to its fair share. Its running jobs are counted in the order in which they
started. Jobs that fit in the entitlement are *in quota*, the others *borrow*. So a job that starts in quota stays in
quota, whatever starts after it, until the entitlement itself shrinks.

An elastic gang counts as its floor. What it has above its floor comes after all floors of its queue (`surplus`).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_QUEUE, J_SHAPE, Table
from kant.cluster.elastic import above_floor
from kant.cluster.quota_columns import NO_QUOTAS, reach, weigh
from kant.cluster.state import ClusterState
from kant.queueing.evictable import (
    R_BASE,
    R_POOLS,
    R_PREEMPTIBLE,
    R_STARTED,
    Running,
    add_pools_held,
    running_table,
)
from kant.queueing.ports import PlanSoFar

if TYPE_CHECKING:
    from kant.cluster.quota_limits import Amounts
    from kant.cluster.quota_tree import QuotaTree

Mask = NDArray[np.bool_]

Reclaim = Literal["off", "nominal", "fair-share"]


class Entitlements:
    """The running jobs of one cycle, as columns, in the order in which they started.

    `runs`: the plan has not stopped the job. `preemptible`: the job runs, and may be stopped. `borrowing`: the job is
    not in quota, or holds no resource with a quota, or its queue is not in the tree. `table` has the columns of
    `evictable.Running`. An object is made once a cycle, and `follow` applies the stops of the plan. Jobs that the plan
    starts would come last, so they change no entitlement.
    """

    def __init__(self, cycle: PlanSoFar, reclaim: Reclaim, min_run: int) -> None:
        self.cycle, self.state, self.reclaims = cycle.weak, cycle.state, reclaim != "off"
        self.fair = reclaim == "fair-share"
        state, quota_usage = cycle.state, cycle.state.quota_usage
        tree, rows = quota_usage.tree, np.fromiter(cycle.state.running, np.int64, len(cycle.state.running))
        self.tree = tree if tree is not None and tree.keys else None
        width, nodes = (
            len(self.tree.keys) if self.tree is not None else 0,
            np.array(quota_usage.node_of, dtype=np.int64),
        )
        homes = np.zeros((len(nodes), 2), dtype=np.int64)
        homes[:, 0] = nodes * width if width else -1
        for node, least in tree.own_min_runs.items() if tree is not None else ():
            homes[nodes == node, 1] = least
        table = running_table(rows, state.jobs, state.shapes.pools, homes, min_run)
        if state.shapes.node_sets.version:
            add_pools_held(table, state.jobs, state.pieces, state.table)
        self._take(table)
        self.runs: Mask = rows >= 0  # at first, all jobs
        self.borrowing: Mask = rows >= 0
        self.held: Table = np.zeros((len(rows), width), dtype=np.int64)
        self.borrows: Mask = self.held > 0  # by job and quota key: whether the job borrows
        self.own_part = self.entitled = np.zeros(0, dtype=np.int64)
        self._followed = 0
        if self.tree is not None:
            amounts = entitled_amounts(self.cycle, self.tree, reclaim == "fair-share")
            self.entitled, self.own_part = (np.array(one, dtype=np.int64) for one in amounts)
            charged = quota_usage.charged
            self.held = np.array([charged[row][3] for row in state.running], dtype=np.int64).reshape(-1, width)
            self.above: dict[int, Amounts] = {}
            if state.elastic:
                self._count_floors()
            self.borrows = self.held > 0
            self._weigh()
        self.follow()

    def _take(self, table: Table) -> None:
        """Set the running jobs, given in the columns of `evictable.Running`."""
        self.table = table
        columns = np.ascontiguousarray(table.T)
        self.rows, self.queue, self.home, self.priority, _, self.started, self.protected_until, *_ = columns
        self.pools, self.base = columns[R_POOLS], columns[R_BASE]
        self.preemptible: Mask = columns[R_PREEMPTIBLE] == 1

    def follow(self) -> None:
        """Apply the stops and shrinks of the plan since the last call."""
        stopped, shrunk = self.cycle.stopped, self.cycle.shrunk
        if self._followed == len(stopped) + len(shrunk):
            return
        self._followed = len(stopped) + len(shrunk)
        if stopped:
            self.runs = ~np.isin(self.rows, np.fromiter(stopped, np.int64, len(stopped)))
            if self.tree is not None:
                self._weigh()
        stay = np.fromiter(shrunk, np.int64, len(shrunk))  # gangs keep their remaining pods in this plan
        self.preemptible = self.preemptible & self.runs & ~np.isin(self.rows, stay)
        self.table = self.table.copy()
        self.table[:, R_PREEMPTIBLE] = self.preemptible

    def _count_floors(self) -> None:
        """Count elastic gangs with their floors; `above` has what they hold in addition."""
        for place, row in enumerate(self.rows.tolist()):
            if is_above_floor(self.state, row):
                self.above[row] = surplus_amounts(self.state, row)
                self.held[place] -= self.above[row]

    def surplus(self) -> Entitlements | None:
        """Return the elastic gangs with what they hold above their floors, which may be taken without stopping them.

        The surplus of a queue is counted after all of its floors, in the order in which the gangs started. None if no
        gang has more than its floor.
        """
        state, rows = self.state, self.rows.tolist()
        places = [place for place, row in enumerate(rows) if self.preemptible[place] and is_above_floor(state, row)]
        if not places:
            return None
        own, table = copy(self), self.table[places]
        table[:, R_STARTED] = [state.elastic[rows[place]].resized for place in places]
        own._take(table)
        own.runs = self.runs[places]
        own.borrowing = np.ones(len(places), dtype=np.bool_)
        own.held, own.borrows = self.held[places], self.borrows[places]
        if self.tree is not None:
            own.held = np.array([self.above[row] for row in own.rows.tolist()], dtype=np.int64)
            own.borrows = own.held > 0
            for first in np.unique(own.home[own.home >= 0]).tolist():
                there, part = np.flatnonzero(own.home == first), self.own_part[first : first + len(self.tree.keys)]
                floors = self.held[(self.home == first) & self.runs].sum(axis=0)
                own.borrows[there] &= floors + own.held[there].cumsum(axis=0) > part
            own.borrowing = own.borrows.any(axis=1) | (own.held.max(axis=1) == 0)
        return own

    def _weigh(self) -> None:
        """Compute which running jobs borrow. The columns of jobs that the plan has stopped do not change."""
        weigh(self.held, self.home, self.runs, self.own_part, self.borrows)
        self.borrowing = self.borrows.any(axis=1) | (self.held.max(axis=1) == 0)

    def reach(self, node: int, amounts: Amounts) -> int:
        """Return how many queues, from this one upwards, stay in quota with `amounts` more; or BORROWING.

        A queue over its quota does not get in quota by replacing one of its jobs with another.
        """
        tree = self.cycle.admission.quota_tree
        asked = np.array(amounts, dtype=np.int64)
        return int(reach(tree.limits, tree.used, node * len(amounts), asked, self.own_part, self.entitled))

    def running(self) -> Running:
        """Return the running jobs as the plan leaves them, for the rules of `queueing/evictable.py`."""
        tree = self.cycle.admission.quota_tree if self.tree is not None else None
        limits, used = (NO_QUOTAS, NO_QUOTAS) if tree is None else (tree.limits, tree.used)
        return Running(self.table, self.held, self.borrows, limits, used, self.own_part, self.entitled)

    def whole(self, allowed: Mask) -> Mask:
        """Return `allowed` without base jobs that have a running replica outside `allowed`, which would stop with them.

        A plan may not stop a burst replica that it starts, so its base job stays as well.
        """
        if not self.state.burst_replicas:
            return allowed
        kept = {*self.base[self.runs & ~allowed].tolist(), *self.cycle.bases} - {-1}
        return allowed & ~np.isin(self.rows, list(kept))


def is_above_floor(state: ClusterState, row: int) -> bool:
    """Return whether a running job is an elastic gang with more than its floor."""
    progress = state.elastic.get(row) if state.elastic else None
    return progress is not None and progress.pods > progress.shape.pods


def surplus_amounts(state: ClusterState, row: int) -> Amounts:
    """Return the quota amounts that an elastic gang has above its floor."""
    shape = state.shape_of(row)
    return state.quota_usage.amounts(shape, above_floor(shape, state.running[row]))


def entitled_amounts(cycle: PlanSoFar, tree: QuotaTree, fair: bool) -> tuple[list[int], list[int]]:
    """Return the entitlement of each node by tree slot, and the part of it for the node's own jobs."""
    width, nodes = len(tree.keys), range(len(tree.queues))
    if not fair:
        return tree.nominal_quotas, tree.nominal_parts
    wants = _wants(cycle, tree)
    by_key = [tree.fair_shares(key, wants[:, key].tolist()) for key in range(width)]
    entitled = [by_key[key][node] for node in nodes for key in range(width)]
    own = [entitled[slot] if tree.is_leaf[slot // width] else part for slot, part in enumerate(tree.nominal_parts)]
    return entitled, own


def _wants(cycle: PlanSoFar, tree: QuotaTree) -> Table:
    """Return what the live jobs of each tree node ask for, by key."""
    state = cycle.state
    rows = np.fromiter(state.live, np.int64, len(state.live))
    shapes = len(state.shapes.shapes)
    kinds, counts = np.unique(state.jobs[rows, J_QUEUE] * shapes + state.jobs[rows, J_SHAPE], return_counts=True)
    wants: Table = np.zeros((len(tree.queues), len(tree.keys)), dtype=np.int64)
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        queue, shape = divmod(kind, shapes)
        if state.quota_usage.node_of[queue] >= 0:
            amounts = state.quota_usage.amounts(state.shapes.shapes[shape])
            wants[state.quota_usage.node_of[queue]] += count * np.array(amounts, dtype=np.int64)
    return wants
