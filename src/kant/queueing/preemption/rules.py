"""Preemption rules: which jobs a waiting job may stop. Design note 9 proves that they terminate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster.columns import J_BASE, J_PRIORITY, J_QUEUE, J_SINCE, J_USER, Table
from kant.cluster.quota_columns import could_ever, reach
from kant.cluster.quota_condition import QuotaCondition
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing import evictable as e
from kant.queueing.ports import NotNow
from kant.queueing.preemption.candidate import Candidate, Pool
from kant.queueing.preemption.entitlement import Entitlements

if TYPE_CHECKING:
    from kant.cluster.quota_limits import Amounts


def given_back(state: ClusterState, victims: Iterable[Candidate]) -> list[tuple[int, int, Amounts]]:
    """Return for each victim its queue, its user, and the quota amounts that it gives back."""
    usage = state.quota_usage
    if isinstance(victims, Pool) and not victims.made:
        return [
            (queue, user, amounts) for queue, user, _, amounts in map(usage.charged.__getitem__, victims.rows.tolist())
        ]
    return [
        (*usage.charged[who.row][:2], usage.amounts(state.shape_of(who.row), who.allocation))
        if who.surplus else (*usage.charged[who.row][:2], usage.charged[who.row][3])
        for who in victims
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """Whether quotas admit a job at its level once victims have left. More victims never make the answer False.

    Without `limited`, the limits of the quotas are not checked, only the level.
    """

    entitlements: Entitlements
    node: int
    user: int
    amounts: Amounts
    level: int
    limited: bool = True

    def __call__(self, victims: Iterable[Candidate]) -> bool:
        cycle, quota_usage = self.entitlements.cycle, self.entitlements.state.quota_usage
        tree = cycle.admission.quota_tree
        given = given_back(self.entitlements.state, victims)
        known = [(quota_usage.node_of[queue], user, amounts) for queue, user, amounts in given]
        if self.limited:
            for node, user, amounts in known:
                if node >= 0:
                    tree.refund(node, user, amounts)
            fits = tree.shortage(self.node, self.user, self.amounts) is None
            for node, user, amounts in known:
                if node >= 0:
                    tree.charge(node, user, amounts)
            if not fits:
                return False
        if self.level == e.BORROWING:
            return True
        gone = tree.copy()
        for node, user, amounts in known:
            if node == self.node:
                gone.refund(node, user, amounts)
        first, asked = self.node * len(self.amounts), np.array(self.amounts, dtype=np.int64)
        part, entitled = self.entitlements.own_part, self.entitlements.entitled
        return bool(reach(tree.limits, gone.used, first, asked, part, entitled) >= self.level)

    def condition(self, candidates: Iterable[Candidate]) -> QuotaCondition | None:
        """Return this rule as columns, for sets of these candidates; None if users have limits of their own."""
        entitlements, quota_usage = self.entitlements, self.entitlements.state.quota_usage
        if quota_usage.limits_users:
            return None
        tree, width = entitlements.cycle.admission.quota_tree, len(self.amounts)
        given = given_back(entitlements.state, candidates)
        home = np.array([quota_usage.node_of[queue] for queue, _, _ in given], dtype=np.int64)
        amounts = np.array([amounts for _, _, amounts in given], dtype=np.int64).reshape(-1, width)
        return QuotaCondition(
            tree.limits, tree.used, self.node * width, np.array(self.amounts, dtype=np.int64),
            np.maximum(home * width, -1), amounts, entitlements.own_part, entitlements.entitled, self.level,
            self.limited,
        )  # fmt: skip


class PreemptionRules:
    """Which running jobs a waiting job may stop to start in one shape. Its quota is judged as if the job ran.

    *In quota* the job may stop jobs of its own queue of lower priority. The job may also stop jobs of other queues that
    borrow what it asks for (reclaim), or that borrow and are of lower priority. *Borrowing* it may only stop jobs that
    borrow and are of lower priority. So no job of another queue that is in quota is stopped, and no job in quota gives
    way to a job that borrows.

    Queues are compared where their paths in the tree meet. Below that queue, all queues on the newcomer's side must
    stay in quota and all on the other side borrow. A level is the number of queues that stay in quota; or BORROWING.
    """

    def __init__(self, entitlements: Entitlements, row: int, shape: Shape, reclaim: bool, by_priority: bool) -> None:
        self.entitlements = entitlements
        cycle, state, tree = entitlements.cycle, entitlements.state, entitlements.tree
        job = state.jobs[row].tolist()
        queue, self.user = job[J_QUEUE], job[J_USER]
        self.node = state.quota_usage.node_of[queue] if tree is not None else -1
        self.amounts: Amounts = state.quota_usage.amounts(shape) if self.node >= 0 else ()
        width = len(tree.keys) if tree is not None else 0
        self.short = self.node >= 0 and cycle.admission.shortage(row, shape) is not None
        self.running = entitlements.running()
        self.claim = e.Claim(
            row, queue, self.node * max(width, 1), job[J_PRIORITY], job[J_SINCE], job[J_BASE],
            e.EVERYWHERE if self.short else shape.pool_bits, np.array(self.amounts or [0] * width, dtype=np.int64),
            by_priority, reclaim, cycle.preempts_passing, cycle.by_share,
        )  # fmt: skip
        self._marks: dict[int, Table] = {}

    @property
    def could_ever(self) -> bool:
        """Whether the quotas would admit the job if nothing ran."""
        return bool(could_ever(self.running.limits, self.claim.first, self.claim.amounts))

    def marks(self, level: int) -> Table:
        """Return which running jobs the waiting job may stop at a level, as bits (`queueing/evictable.py`).

        A base job may be stopped only with all its running replicas.
        """
        found = self._marks.get(level)
        if found is None:
            found = self._marks[level] = np.zeros(len(self.running.table), dtype=np.int64)
            e.mark(self.running, self.claim, level, found)
            if self.entitlements.state.burst_replicas:
                found[~self.entitlements.whole(found & e.STOPS > 0)] &= ~e.STOPS
        return found

    def victims(self, level: int) -> tuple[Table, Table, Table]:
        """Return the indices of the running jobs that the waiting job may stop at a level, now or later; their marks;
        and from when (µs) each may be stopped: 0 for jobs that passed the waiting job.
        """
        marks = self.marks(level)
        places = np.flatnonzero(marks & e.STOPS)
        marks = marks[places]
        return places, marks, np.where(marks & e.PASSED, 0, self.entitlements.protected_until[places])

    def levels(self) -> list[int]:
        """Return the levels at which the job may preempt, in the order in which they are tried."""
        found: list[int] = e.levels_of(self.running, self.claim).tolist()
        return found

    def finds(self, cap: int, exact: int) -> NotNow | None:
        """Return when to try again if totals show that no eviction helps now; None if only a search can tell."""
        found, until = e.finds_victims(self.entitlements.cycle.now, self.running, self.claim, cap, exact)
        return None if found == e.MAY_BE else NotNow(until, found == e.NONE_PROVEN)

    def quota(self, level: int) -> QuotaRule | None:
        """Return the rule by which the quota admits the job at a level; None if no quota applies to the job."""
        return QuotaRule(self.entitlements, self.node, self.user, self.amounts, level) if self.node >= 0 else None
