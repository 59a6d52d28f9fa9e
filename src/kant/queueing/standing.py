"""Standing: which running jobs are within what their queue is entitled to, and which are beyond it.

A queue is entitled to its nominal quota, or to its fair share. A running job is *within* while it and those jobs of
its queue that started before it hold no more than that; else it is *beyond*. So what starts within stays within,
whatever starts after it, until the entitlement itself shrinks.

An elastic gang counts here as its floor. What it has above that comes after all floors of its queue (`spare`).
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import J_CORE, J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_SHAPE, J_STARTED, J_USER, Table
from kant.cluster.elastic import above_floor
from kant.cluster.quota_limits import Amounts
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.state import ClusterState
from kant.model.units import FOREVER

if TYPE_CHECKING:
    from kant.queueing.turn import Turn

Mask = NDArray[np.bool_]

Gone = tuple[int, Amounts]
"""A user, and what leaves of what he holds in one queue."""

Reclaim = Literal["off", "nominal", "fair-share"]

BEYOND = -1
"""Reach of a job that would bring its queue beyond what it is entitled to."""


class Standing:
    """The running jobs of one cycle, as columns, in the order in which they started.

    `runs`: the plan has not stopped it. `loose`: nor is it one that may not be stopped. `beyond`: as above; a job
    that holds nothing that quotas are about, or whose queue the tree does not know, is entitled to nothing. Made once
    a cycle; `follow` takes in whom the plan has stopped since. Jobs that the plan starts come last, so they change
    nobody's standing.

    Two bounds answer most questions at once: `lowest` is the lowest priority of those that are loose, and `lends`
    says whether one of them is beyond a quota.
    """

    def __init__(self, turn: Turn, reclaim: Reclaim, min_run: int) -> None:
        self.turn, self.state, self.reclaims = turn, turn.state, reclaim != "off"
        state, holdings = turn.state, turn.state.holdings
        self.rows = turn.running()
        jobs = state.jobs[self.rows]
        self.queue, self.priority, self.user = jobs[:, J_QUEUE], jobs[:, J_PRIORITY], jobs[:, J_USER]
        self.core, self.runs = jobs[:, J_CORE], np.ones(len(self.rows), dtype=np.bool_)
        self.pools = np.array([shape.pool_bits for shape in state.shapes.shapes], dtype=np.int64)[jobs[:, J_SHAPE]]
        self.loose: Mask = jobs[:, J_PREEMPTIBLE] == 1
        self.beyond: Mask = np.ones(len(self.rows), dtype=np.bool_)
        self.unlimited: Mask = self.beyond  # holds nothing that quotas are about
        self.tree = holdings.tree if holdings.tree is not None and holdings.tree.keys else None
        homes = np.array(holdings.node_of, dtype=np.int64)
        own = [holdings.tree.queues[home].min_run if holdings.tree and home >= 0 else 0 for home in holdings.node_of]
        self.started = jobs[:, J_STARTED]
        self.of_age_at = self.started + np.maximum(np.array(own, dtype=np.int64), min_run)[self.queue]
        self.home = homes[self.queue]
        self._followed = -1
        if self.tree is not None:
            self.entitled, self.own_part = entitlements(self.turn, self.tree, reclaim == "fair-share")
            self.above = {row: amounts_above(state, row) for row in self.rows.tolist() if is_wide(state, row)}
            parts = chain.from_iterable(self._floor_of(row) for row in self.rows.tolist())
            width = len(self.tree.keys)
            self.held = np.fromiter(parts, np.int64, len(self.rows) * width).reshape(-1, width)
            self.over: Mask = self.held > 0  # by key: beyond in it
            self.unlimited = self.held.max(axis=1) == 0
            self._weigh(np.unique(self.home), np.zeros(len(self.rows), dtype=np.bool_))
        self.follow()

    def follow(self) -> None:
        """Take in whom the plan has stopped since the last time."""
        stopped, shrunk = self.turn.stopped, self.turn.shrunk
        if self._followed == len(stopped) + len(shrunk):
            return
        self._followed = len(stopped) + len(shrunk)
        gone = np.isin(self.rows, np.fromiter(stopped, np.int64, len(stopped)))
        self.loose, self.runs = self.loose & ~gone, ~gone
        if shrunk:  # what is left of them stays for this plan
            self.loose = self.loose & ~np.isin(self.rows, np.fromiter(shrunk, np.int64, len(shrunk)))
        if self.tree is not None:
            self._weigh(np.unique(self.home[gone]), gone)
        self.lowest = int(self.priority[self.loose].min()) if self.loose.any() else FOREVER
        self.lends = self.tree is not None and bool((self.over.any(axis=1) & self.loose).any())

    def _floor_of(self, row: int) -> Amounts:
        amounts, above = self.state.holdings.charged[row][3], self.above.get(row)
        return amounts if above is None else tuple(a - b for a, b in zip(amounts, above, strict=True))

    def spare(self) -> Standing | None:
        """The elastic gangs as what they hold above their floors, which may be taken without stopping them.

        That is beyond where it and all floors of the queue, and what others have above theirs and started before,
        are more than the queue's part. None where nobody has more than his floor.
        """
        state, rows = self.state, self.rows.tolist()
        places = [place for place, row in enumerate(rows) if self.loose[place] and is_wide(state, row)]
        if not places:
            return None
        own = copy(self)
        own.rows, own.queue, own.priority, own.user, own.core = (
            column[places] for column in (self.rows, self.queue, self.priority, self.user, self.core)
        )
        own.pools, own.home, own.of_age_at = self.pools[places], self.home[places], self.of_age_at[places]
        own.loose, own.runs = self.loose[places], self.runs[places]
        own.started = np.array([state.elastic[row].resized for row in own.rows.tolist()], dtype=np.int64)
        own.beyond = own.unlimited = np.ones(len(places), dtype=np.bool_)
        own.lends = False
        if self.tree is not None:
            own.held = np.array([self.above[row] for row in own.rows.tolist()], dtype=np.int64)
            own.over = own.held > 0
            own.unlimited = own.held.max(axis=1) == 0
            for node in np.unique(own.home[own.home >= 0]).tolist():
                there, width = np.flatnonzero(own.home == node), len(self.tree.keys)
                part = np.array(self.own_part[node * width : node * width + width], dtype=np.int64)
                floors = self.held[(self.home == node) & self.runs].sum(axis=0)
                own.over[there] &= floors + own.held[there].cumsum(axis=0) > part
            own.beyond = own.over.any(axis=1) | own.unlimited
            own.lends = bool(own.over.any())
        own.lowest = int(own.priority.min())
        return own

    def _weigh(self, nodes: Table, gone: Mask) -> None:
        """See which jobs of these queues are beyond."""
        assert self.tree is not None
        width = len(self.tree.keys)
        for node in nodes[nodes >= 0].tolist():
            there = np.flatnonzero((self.home == node) & ~gone)
            part = np.array(self.own_part[node * width : node * width + width], dtype=np.int64)
            held = self.held[there]
            self.over[there] = (held > 0) & (held.cumsum(axis=0) > part)
        self.beyond = self.over.any(axis=1) | self.unlimited

    def reach(self, node: int, amounts: Amounts, gone: Collection[Gone] = ()) -> int:
        """The place in a queue's path up to which all below stay entitled if it takes `amounts`, or BEYOND.

        Once `gone`, jobs of that queue, have left. That is not the same as taking less: a queue that holds too much
        already is not within because one of its jobs takes the place of another.
        """
        assert self.tree is not None
        books, first = self.turn.admission.books, node * len(amounts)
        for user, held in gone:
            books.refund(node, user, held)
        within = all(
            amount == 0 or books.own(node, key) + amount <= self.own_part[first + key]
            for key, amount in enumerate(amounts)
        )
        reach = books.paths[node].index(books.reclaim_scope(node, amounts, self.entitled)) if within else BEYOND
        for user, held in gone:
            books.charge(node, user, held)
        return reach

    def gone(self, mask: Mask) -> list[Gone]:
        """What these jobs, all of one queue, give back when they leave, by user."""
        users = self.user[mask]
        return [(user, self.held[mask][users == user].sum(axis=0).tolist()) for user in np.unique(users).tolist()]

    def whole(self, allowed: Mask) -> Mask:
        """`allowed` without the cores of bursts that are not: whoever stops a core stops its bursts.

        A burst that the plan itself starts may not be stopped by it, so its core stays as well.
        """
        if not self.state.bursts:
            return allowed
        kept = {*self.core[self.runs & ~allowed].tolist(), *self.turn.cores} - {-1}
        return allowed & ~np.isin(self.rows, list(kept))

    def is_beyond(self, node: int, amounts: Amounts) -> bool:
        """Whether a node of the tree, with all below it, is beyond in something of which `amounts` asks for more."""
        books, first = self.turn.admission.books, node * len(amounts)
        return any(
            amount > 0 and books.usage(node, key) > self.entitled[first + key] for key, amount in enumerate(amounts)
        )


def is_wide(state: ClusterState, row: int) -> bool:
    """Whether a running job is an elastic gang with more than its floor."""
    progress = state.elastic.get(row) if state.elastic else None
    return progress is not None and progress.pods > progress.shape.pods


def amounts_above(state: ClusterState, row: int) -> Amounts:
    """What an elastic gang has above its floor, of what quotas are about."""
    shape = state.shape_of(row)
    return state.holdings.amounts(shape, above_floor(shape, state.running[row]))


def entitlements(turn: Turn, tree: QuotaTree, fair: bool) -> tuple[list[int], list[int]]:
    """What each node is entitled to, by slot of the tree; and which part of it is for the node's own jobs."""
    width, nodes = len(tree.keys), range(len(tree.queues))
    if fair:
        wants = _wants(turn, tree)
        by_key = [tree.fair_shares(key, wants[:, key].tolist()) for key in range(width)]
        entitled = [by_key[key][node] for node in nodes for key in range(width)]
    else:
        entitled = [tree.nominal(node, key) for node in nodes for key in range(width)]
    own = entitled.copy()
    for node in nodes:
        if not tree.is_leaf[node]:
            named: dict[tuple[str, str], int] = {
                (quota.model, quota.resource): quota.nominal for quota in tree.queues[node].quotas
            }
            own[node * width : node * width + width] = [named.get(key, 0) for key in tree.keys]
    return entitled, own


def _wants(turn: Turn, tree: QuotaTree) -> Table:
    """What the live jobs of each node of the tree ask for, by key."""
    state = turn.state
    rows = np.fromiter(state.live, np.int64, len(state.live))
    shapes = len(state.shapes.shapes)
    kinds, counts = np.unique(state.jobs[rows, J_QUEUE] * shapes + state.jobs[rows, J_SHAPE], return_counts=True)
    wants: Table = np.zeros((len(tree.queues), len(tree.keys)), dtype=np.int64)
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        queue, shape = divmod(kind, shapes)
        if state.holdings.node_of[queue] >= 0:
            amounts = state.holdings.amounts(state.shapes.shapes[shape])
            wants[state.holdings.node_of[queue]] += count * np.array(amounts, dtype=np.int64)
    return wants
