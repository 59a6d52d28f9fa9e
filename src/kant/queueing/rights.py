"""Rights: whom a waiting job may stop. Why this comes to an end is said in docs/design/0009-no-two-rounds.md."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kant.cluster.columns import J_CORE, J_PRIORITY, J_QUEUE, J_USER
from kant.cluster.quota_limits import Amounts
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.queueing.standing import BEYOND, Mask, Standing
from kant.queueing.victims_proof import Candidate


def given_back(state: ClusterState, who: Candidate) -> tuple[int, int, Amounts]:
    """The queue and user of a victim, and what of the quotas it gives back."""
    queue, user, _, amounts = state.holdings.charged[who.row]
    if who.spare:
        amounts = state.holdings.amounts(state.shape_of(who.row), who.allocation)
    return queue, user, amounts


class Rights:
    """What one waiting job may do, as one shape. It asks as what it will be once it runs.

    *Within* its queue's entitlement it may stop jobs of its own queue of lower priority, and jobs of other queues that
    are beyond theirs in what it asks for (reclaim) or of lower priority and beyond. *Beyond* it may stop only what is
    of lower priority and beyond as well. So nobody stops a job of another queue that is within, and nobody gives up a
    place within for one beyond.

    Queues are compared where their paths meet: all below on the newcomer's side stay within, all on the other side are
    beyond. A claim is how far up the newcomer's path that holds, or BEYOND.
    """

    def __init__(self, standing: Standing, row: int, shape: Shape, reclaim: bool, by_priority: bool) -> None:
        self.standing = standing
        turn, state = standing.turn, standing.state
        self.tree = standing.tree
        self.queue, self.user, core, priority = state.jobs[row, [J_QUEUE, J_USER, J_CORE, J_PRIORITY]].tolist()
        self.node = state.holdings.node_of[self.queue] if self.tree is not None else -1
        self.amounts: Amounts = state.holdings.amounts(shape) if self.node >= 0 else ()
        self.wanted = np.array(self.amounts, dtype=np.int64) > 0
        self.short = self.node >= 0 and turn.admission.shortage(row, shape) is not None
        loose, self._near = standing.loose, standing.runs
        if not self.short:
            self._near = standing.pools & shape.pool_bits != 0
        if core >= 0:
            loose = loose & (standing.rows != core) & (standing.core != core)
        own: Mask = standing.queue == self.queue
        lower = loose & (standing.priority < priority) if by_priority else np.zeros(len(loose), dtype=np.bool_)
        self._own_lower = lower & own
        self._other_lower = lower & ~own & standing.beyond
        self._entitled_to_nothing = self._other_lower & standing.unlimited
        self._lent = np.zeros(len(loose), dtype=np.bool_)
        if reclaim and self.wanted.any():
            self._lent = loose & ~own & (standing.over & self.wanted).any(axis=1)

    def claims(self) -> list[int]:
        """As what the job may ask, one after the other."""
        if self.tree is None or not self.wanted.any():
            return [BEYOND]
        reach = self.standing.reach(self.node, self.amounts)
        own = self._own_lower & self._near
        if not own.any():
            return [reach] if reach == BEYOND else [reach, BEYOND]
        further = self.standing.reach(self.node, self.amounts, self.standing.gone(own))
        return list(dict.fromkeys([*([reach] if reach != BEYOND else []), further, BEYOND]))

    def victims(self, claim: int) -> Mask:
        """Whom it may stop with this claim, of age or not: a core only with all its bursts that run."""
        own = self._own_lower & self.standing.beyond if claim == BEYOND else self._own_lower
        others = self._of_queues(self._other_lower, BEYOND) | self._entitled_to_nothing
        return self.standing.whole(own | others | self.reclaims(claim)) & self._near

    def reclaims(self, claim: int) -> Mask:
        """Of whom it takes back what its queue is entitled to."""
        return np.zeros_like(self._lent) if claim == BEYOND else self._of_queues(self._lent, claim)

    def _of_queues(self, mask: Mask, claim: int) -> Mask:
        """Those of `mask` against whose queues the claim holds."""
        if self.tree is None or not mask.any():
            return mask
        queues = self.standing.queue
        allowed = [queue for queue in np.unique(queues[mask]).tolist() if self._holds_against(queue, claim)]
        return mask & np.isin(queues, allowed)

    def _holds_against(self, queue: int, claim: int) -> bool:
        """Whether all of the other side are beyond, and all of the newcomer's within as far as the claim needs it."""
        assert self.tree is not None
        home, own = self.standing.state.holdings.node_of[queue], self.tree.paths[self.node]
        if home < 0 or not self.wanted.any():
            return True
        path = self.tree.paths[home]
        meets = next((place for place, node in enumerate(path) if node in own), len(path))
        if claim != BEYOND and (meets == len(path) or own.index(path[meets]) > claim):
            return False
        return all(self.standing.is_beyond(node, self.amounts) for node in path[:meets])

    def admits(self, victims: Collection[Candidate], claim: int) -> bool:
        """Whether its quota lets it in once these have left, and its claim is then true."""
        turn, holdings = self.standing.turn, self.standing.state.holdings
        books = turn.admission.books
        given = [given_back(self.standing.state, who) for who in victims]
        known = [(holdings.node_of[queue], user, amounts) for queue, user, amounts in given]
        for node, user, amounts in known:
            if node >= 0:
                books.refund(node, user, amounts)
        fits = books.shortage(self.node, self.user, self.amounts) is None
        for node, user, amounts in known:
            if node >= 0:
                books.charge(node, user, amounts)
        gone = [(user, amounts) for node, user, amounts in known if node == self.node]
        return fits and (claim == BEYOND or self.standing.reach(self.node, self.amounts, gone) >= claim)
