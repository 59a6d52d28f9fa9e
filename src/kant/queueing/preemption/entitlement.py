"""Entitlements: which running jobs are in quota, and which borrow.

A queue is entitled to its nominal quota, or to its fair share. Its running jobs are counted in the order in which they
started. Those that fit in the entitlement are *in quota*, the others *borrow*. So a job that starts in quota stays in
quota, whatever starts after it, until the entitlement itself shrinks.

An elastic gang counts as its floor. What it has above its floor comes after all floors of its queue (`surplus`).
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_BASE, J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_SHAPE, J_STARTED, J_USER, Table
from kant.cluster.elastic import above_floor
from kant.cluster.quota_columns import weigh
from kant.cluster.quota_limits import Amounts
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.shapes import S_POOLS
from kant.cluster.state import ClusterState
from kant.model.units import FOREVER
from kant.queueing.ports import PlanSoFar
from kant.queueing.preemption.one_node import HeldByNode
from kant.queueing.preemption.room_bound import PreemptibleRoom

Mask = NDArray[np.bool_]

Gone = tuple[int, Amounts]
"""A user, and the amounts of that user in one queue that leave."""

Reclaim = Literal["off", "nominal", "fair-share"]

BORROWING = -1
"""The level of a job that would make its queue borrow."""


class Entitlements:
    """The running jobs of one cycle, as columns, in the order in which they started.

    `runs`: the plan has not stopped the job. `preemptible`: it runs, and may be stopped. `borrowing`: it borrows. A job
    that holds nothing that quotas count, or whose queue is not in the tree, is entitled to nothing and borrows
    (`unlimited`). `guaranteed`: its queue guarantees it a minimum run time. The table is made once a cycle, and
    `follow` applies the stops of the plan. Jobs that the plan starts come last, so they change no entitlement.

    Two bounds answer most questions without a scan. `lowest` is the lowest priority of the preemptible jobs, and
    `any_borrowing` says whether one of them borrows from a quota.
    """

    def __init__(self, cycle: PlanSoFar, reclaim: Reclaim, min_run: int) -> None:
        self.cycle, self.state, self.reclaims = cycle, cycle.state, reclaim != "off"
        self.fair = reclaim == "fair-share"
        state, quota_usage = cycle.state, cycle.state.quota_usage
        self.rows = np.fromiter(cycle.state.running, np.int64, len(cycle.state.running))
        jobs = state.jobs.take(self.rows, axis=0)
        self.queue, self.priority, self.user = jobs[:, J_QUEUE], jobs[:, J_PRIORITY], jobs[:, J_USER]
        self.base, self.runs = jobs[:, J_BASE], np.ones(len(self.rows), dtype=np.bool_)
        self.pools = state.shapes.facts[jobs[:, J_SHAPE], S_POOLS]
        self.preemptible: Mask = jobs[:, J_PREEMPTIBLE] == 1
        self.borrowing: Mask = np.ones(len(self.rows), dtype=np.bool_)
        self.unlimited: Mask = self.borrowing  # holds nothing that quotas count
        self.tree = quota_usage.tree if quota_usage.tree is not None and quota_usage.tree.keys else None
        self.started = jobs[:, J_STARTED]
        self.protected_until = self.started + min_run
        self.home = np.array(quota_usage.node_of, dtype=np.int64)[self.queue]
        self.guaranteed: Mask = np.zeros(len(self.rows), dtype=np.bool_)
        if quota_usage.tree is not None and quota_usage.tree.own_min_runs:
            least = [quota_usage.tree.own_min_runs.get(home, 0) for home in quota_usage.node_of]
            self.protected_until = self.started + np.maximum(np.array(least, dtype=np.int64), min_run)[self.queue]
            self.guaranteed = (np.array(least, dtype=np.int64) > 0)[self.queue]
        self.by_node: HeldByNode | None = None  # of the preemptible jobs; made for the first gang of one pod
        self._followed = -1
        if self.tree is not None:
            self.entitled, self.own_part = entitled_amounts(self.cycle, self.tree, reclaim == "fair-share")
            charged, width = quota_usage.charged, len(self.tree.keys)
            self.held = np.array([charged[row][3] for row in state.running], dtype=np.int64).reshape(-1, width)
            self.above: dict[int, Amounts] = {}
            if state.elastic:
                self._count_floors()
            self.borrows: Mask = self.held > 0  # by key: borrows of it
            self.unlimited = self.held.max(axis=1) == 0
            self._weigh()
        self.follow()

    def follow(self) -> None:
        """Apply the stops and shrinks of the plan since the last call."""
        stopped, shrunk = self.cycle.stopped, self.cycle.shrunk
        if self._followed == len(stopped) + len(shrunk):
            return
        self._followed = len(stopped) + len(shrunk)
        if stopped:
            gone = np.isin(self.rows, np.fromiter(stopped, np.int64, len(stopped)))
            self.preemptible, self.runs = self.preemptible & ~gone, ~gone
            if self.tree is not None:
                self._weigh()
        if shrunk:  # their remaining pods stay in this plan
            self.preemptible = self.preemptible & ~np.isin(self.rows, np.fromiter(shrunk, np.int64, len(shrunk)))
        self.lowest = int(self.priority[self.preemptible].min()) if self.preemptible.any() else FOREVER
        self.any_borrowing = self.tree is not None and bool((self.borrows.any(axis=1) & self.preemptible).any())

    @cached_property
    def protected(self) -> list[int]:
        """The places of the preemptible jobs that have not reached their minimum run time; the next to reach it first.

        As of the first use in the cycle.
        """
        places = np.flatnonzero(self.preemptible & (self.protected_until > self.cycle.now))
        found: list[int] = places[np.argsort(self.protected_until[places], kind="stable")].tolist()
        return found

    @cached_property
    def room(self) -> PreemptibleRoom:
        """What the preemptible jobs past their minimum run time hold, as of the first use in the cycle."""
        places = self.preemptible & (self.protected_until <= self.cycle.now)
        return PreemptibleRoom(self.state, self.rows[places], self.borrowing[places].astype(np.int64))

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
        own = copy(self)
        own.rows, own.queue, own.priority, own.user, own.base = (
            column[places] for column in (self.rows, self.queue, self.priority, self.user, self.base)
        )
        own.pools, own.home, own.protected_until = self.pools[places], self.home[places], self.protected_until[places]
        own.preemptible, own.runs, own.guaranteed = (
            column[places] for column in (self.preemptible, self.runs, self.guaranteed)
        )
        own.started = np.array([state.elastic[row].resized for row in own.rows.tolist()], dtype=np.int64)
        own.borrowing = own.unlimited = np.ones(len(places), dtype=np.bool_)
        own.any_borrowing = False
        if self.tree is not None:
            own.held = np.array([self.above[row] for row in own.rows.tolist()], dtype=np.int64)
            own.borrows = own.held > 0
            own.unlimited = own.held.max(axis=1) == 0
            for node in np.unique(own.home[own.home >= 0]).tolist():
                there, width = np.flatnonzero(own.home == node), len(self.tree.keys)
                part = np.array(self.own_part[node * width : node * width + width], dtype=np.int64)
                floors = self.held[(self.home == node) & self.runs].sum(axis=0)
                own.borrows[there] &= floors + own.held[there].cumsum(axis=0) > part
            own.borrowing = own.borrows.any(axis=1) | own.unlimited
            own.any_borrowing = bool(own.borrows.any())
        own.lowest = int(own.priority.min())
        return own

    def _weigh(self) -> None:
        """Compute which running jobs borrow. The columns of jobs that the plan has stopped do not change."""
        parts = np.array(self.own_part, dtype=np.int64)
        weigh(self.held, self.home * self.held.shape[1], self.runs, parts, self.borrows)
        self.borrowing = self.borrows.any(axis=1) | self.unlimited

    def reach(self, node: int, amounts: Amounts, gone: Collection[Gone] = ()) -> int:
        """Return the highest place in a queue's path up to which all stay in quota if it takes `amounts`, or BORROWING.

        Jobs of that queue in `gone` have left before. A queue over its quota does not get in quota by replacing one of
        its jobs with another.
        """
        assert self.tree is not None
        tree, first = self.cycle.admission.quota_tree, node * len(amounts)
        if gone:
            tree = tree.without([(node, user, held) for user, held in gone])
        for key, amount in enumerate(amounts):
            if amount and tree.own(node, key) + amount > self.own_part[first + key]:
                return BORROWING
        return tree.paths[node].index(tree.reclaim_scope(node, amounts, self.entitled))

    def gone(self, mask: Mask) -> list[Gone]:
        """Return what these jobs, all of one queue, give back when they leave, by user."""
        users = self.user[mask]
        return [(user, self.held[mask][users == user].sum(axis=0).tolist()) for user in np.unique(users).tolist()]

    def whole(self, allowed: Mask) -> Mask:
        """Return `allowed` without base jobs that have a running replica outside it: they stop with their replicas.

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
