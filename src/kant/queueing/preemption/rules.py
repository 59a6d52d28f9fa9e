"""Preemption rules: which jobs a waiting job may stop. Design note 9 proves that they terminate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kant.cluster.columns import J_BASE, J_PRIORITY, J_QUEUE, J_SINCE, J_STARTED, J_USER, Table
from kant.cluster.quota_columns import all_borrow
from kant.cluster.quota_condition import QuotaCondition
from kant.cluster.quota_limits import Amounts
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing.preemption.candidate import Candidate
from kant.queueing.preemption.entitlement import BORROWING, Entitlements, Mask


def given_back(state: ClusterState, who: Candidate) -> tuple[int, int, Amounts]:
    """Return the queue and the user of a victim, and the quota amounts that it gives back."""
    queue, user, _, amounts = state.quota_usage.charged[who.row]
    if who.surplus:
        amounts = state.quota_usage.amounts(state.shape_of(who.row), who.allocation)
    return queue, user, amounts


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """Whether the quota admits a job once its victims have left, and its level then holds. More never make it false.

    Without `limited` only the level counts.
    """

    entitlements: Entitlements
    node: int
    user: int
    amounts: Amounts
    level: int
    limited: bool = True

    def __call__(self, victims: Collection[Candidate]) -> bool:
        cycle, quota_usage = self.entitlements.cycle, self.entitlements.state.quota_usage
        tree = cycle.admission.quota_tree
        given = [given_back(self.entitlements.state, who) for who in victims]
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
        gone = [(user, amounts) for node, user, amounts in known if node == self.node]
        return self.level == BORROWING or self.entitlements.reach(self.node, self.amounts, gone) >= self.level

    def condition(self, candidates: Collection[Candidate]) -> QuotaCondition | None:
        """Return this in columns, for sets of these candidates; None where users have limits of their own."""
        entitlements, quota_usage = self.entitlements, self.entitlements.state.quota_usage
        if quota_usage.limits_users:
            return None
        tree, width = entitlements.cycle.admission.quota_tree, len(self.amounts)
        given = [given_back(entitlements.state, who) for who in candidates]
        home = np.array([quota_usage.node_of[queue] for queue, _, _ in given], dtype=np.int64)
        amounts = np.array([amounts for _, _, amounts in given], dtype=np.int64).reshape(-1, width)
        first, part, entitled = self.node * width, entitlements.own_part, entitlements.entitled
        return QuotaCondition(
            tree.limits, tree.used, first, np.array(self.amounts, dtype=np.int64), np.maximum(home * width, -1),
            amounts, np.array(part[first : first + width], dtype=np.int64), np.array(entitled, dtype=np.int64),
            self.level, self.limited,
        )  # fmt: skip


class PreemptionRules:
    """Which running jobs one waiting job may stop, in one shape. Its own level is the one that it has once it runs.

    *In quota* the job may stop jobs of its own queue of lower priority. It may also stop jobs of other queues that
    borrow what it asks for (reclaim), or that borrow and are of lower priority. *Borrowing* it may only stop jobs that
    borrow and are of lower priority. So no job of another queue that is in quota is stopped, and no job in quota gives
    its place to one that borrows.

    Queues are compared where their paths in the tree meet. Below that, all queues on the newcomer's side stay in quota
    and all on the other side borrow. A level is how far up the newcomer's path that holds, or BORROWING.
    """

    def __init__(self, entitlements: Entitlements, row: int, shape: Shape, reclaim: bool, by_priority: bool) -> None:
        self.entitlements = entitlements
        cycle, state = entitlements.cycle, entitlements.state
        self.tree = entitlements.tree
        self.queue, self.user, base, priority = state.jobs[row, [J_QUEUE, J_USER, J_BASE, J_PRIORITY]].tolist()
        self.node = state.quota_usage.node_of[self.queue] if self.tree is not None else -1
        self.amounts: Amounts = state.quota_usage.amounts(shape) if self.node >= 0 else ()
        self._amounts = np.array(self.amounts, dtype=np.int64)
        self.wanted = self._amounts > 0
        self.short = self.node >= 0 and cycle.admission.shortage(row, shape) is not None
        preemptible, self._near = entitlements.preemptible, entitlements.runs
        if not self.short:
            self._near = entitlements.pools & shape.pool_bits != 0
        if base >= 0:
            preemptible = preemptible & (entitlements.rows != base) & (entitlements.base != base)
        own: Mask = entitlements.queue == self.queue
        lower = (
            preemptible & (entitlements.priority < priority)
            if by_priority
            else np.zeros(len(preemptible), dtype=np.bool_)
        )
        self.passed = self._have_passed(row, priority)
        if not by_priority and self.passed is not None:
            lower = self.passed & preemptible
        self._own_lower = lower & own
        self._other_lower = lower & ~own & entitlements.borrowing
        self._entitled_to_nothing = self._other_lower & entitlements.unlimited
        self._reclaimable = np.zeros(len(preemptible), dtype=np.bool_)
        if reclaim and self.wanted.any():
            self._reclaimable = preemptible & ~own & (entitlements.borrows & self.wanted).any(axis=1)

    def _have_passed(self, row: int, priority: int) -> Mask | None:
        """Return the preemptible jobs of lower priority that started while the job waited, without those whose queue
        guarantees them a minimum run time; None if the discipline takes back none.
        """
        entitlements, cycle = self.entitlements, self.entitlements.cycle
        if not cycle.takes_back:
            return None
        jobs = cycle.state.jobs
        passed: Mask = entitlements.preemptible & (entitlements.priority < priority)
        passed &= jobs[entitlements.rows, J_STARTED] > jobs.item(row, J_SINCE)
        if cycle.by_share:
            passed &= entitlements.queue == self.queue
        return passed & ~entitlements.guaranteed

    def protected_until(self) -> Table:
        """Return when each running job may be preempted for this one, µs; 0 for jobs that passed it."""
        until = self.entitlements.protected_until
        return until if self.passed is None else np.where(self.passed, 0, until)

    def levels(self) -> list[int]:
        """Return the levels at which the job may preempt, in the order in which they are tried."""
        if self.tree is None or not self.wanted.any():
            return [BORROWING]
        reach = self.entitlements.reach(self.node, self.amounts)
        own = self._own_lower & self._near
        if not own.any():
            return [reach] if reach == BORROWING else [reach, BORROWING]
        further = self.entitlements.reach(self.node, self.amounts, self.entitlements.gone(own))
        return list(dict.fromkeys([*([reach] if reach != BORROWING else []), further, BORROWING]))

    def victims(self, level: int) -> tuple[Mask, Mask]:
        """Return the jobs that it may stop at a level, protected or not; and those from which it reclaims.

        A base job is included only with all its running replicas.
        """
        own = self._own_lower & self.entitlements.borrowing if level == BORROWING else self._own_lower
        others = self._of_queues(self._other_lower, BORROWING) | self._entitled_to_nothing
        reclaims = self._reclaims(level)
        return self.entitlements.whole(own | others | reclaims) & self._near, reclaims

    def _reclaims(self, level: int) -> Mask:
        """Return the jobs from which it reclaims the entitlement of its queue."""
        return np.zeros_like(self._reclaimable) if level == BORROWING else self._of_queues(self._reclaimable, level)

    def _of_queues(self, mask: Mask, level: int) -> Mask:
        """Return the jobs of `mask` against whose queues the level holds."""
        if self.tree is None or not mask.any():
            return mask
        queues = self.entitlements.queue
        allowed: Mask = np.zeros(int(queues.max()) + 1, dtype=np.bool_)
        for queue in set(queues[mask].tolist()):
            allowed[queue] = self._holds_against(queue, level)
        return mask & allowed[queues]

    def _holds_against(self, queue: int, level: int) -> bool:
        """Return whether all queues on the other side borrow, and the newcomer's side is in quota up to the level."""
        assert self.tree is not None
        home, own = self.entitlements.state.quota_usage.node_of[queue], self.tree.paths[self.node]
        if home < 0 or not self.wanted.any():
            return True
        path = self.tree.paths[home]
        meets = ([place for place, node in enumerate(path) if node in own] or [len(path)])[0]
        if level != BORROWING and (meets == len(path) or own.index(path[meets]) > level):
            return False
        tree, width = self.entitlements.cycle.admission.quota_tree, len(self.amounts)
        entitled = np.array(self.entitlements.entitled, dtype=np.int64)
        return bool(all_borrow(tree.limits, tree.used, entitled, home * width, self.node * width, self._amounts))

    def quota(self, level: int) -> QuotaRule | None:
        """Return whether the quota admits the job at a level; None if no quota is about it."""
        return QuotaRule(self.entitlements, self.node, self.user, self.amounts, level) if self.node >= 0 else None
