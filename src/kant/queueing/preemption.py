"""Preemption: by which right a waiting job may stop running ones, and why no two rounds can undo each other.

The argument is in docs/design/0009-no-two-rounds.md. There are two rights. *Priority*: a job of higher priority.
*Reclaim*: a queue that stays within what it is entitled to takes back what others use beyond theirs. Sources: Kueue
(reclaimWithinCohort, with a hierarchical advantage), KAI-Scheduler (reclaim to fair share), Kant (arXiv 2510.01256).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta, Struct

from kant.cluster.columns import (
    J_CHECKPOINT,
    J_CORE,
    J_MILLI,
    J_PREEMPTIBLE,
    J_PRIORITY,
    J_QUEUE,
    J_STARTED,
    J_USER,
)
from kant.cluster.holdings import Amounts
from kant.cluster.shapes import Shape
from kant.model.placement import Allocation
from kant.model.units import SECOND
from kant.queueing.promises import keeps_promises
from kant.queueing.turn import Turn
from kant.queueing.victims import Candidate, choose


class Preemption(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may be stopped for whom.

    `priority`: for a job of higher priority. `reclaim`: for a job whose queue stays within its `nominal` quota, or
    within its `fair-share` of the whole, a job of a queue that is beyond its own. Never a job that is not
    preemptible, nor one that has run for less than `min_run_s` (or its queue's own minimum) since it last started.
    The victims hold at most `most` times the GPUs of the newcomer.
    """

    priority: bool = True
    reclaim: Literal["off", "nominal", "fair-share"] = "nominal"
    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 300
    most: Annotated[float, Meta(ge=0, le=10**6)] = 4.0

    def make_room(self, turn: Turn, row: int, shape: Shape) -> Allocation | None:
        """Stop as few as it takes, at the least price, if that is proven to seat `row` as `shape`; else None.

        On success the plan has the victims stopped, and the place is taken on the trial. Otherwise nothing is
        changed, but `turn.retry_at` may say when a running job comes of age.
        """
        rights = Rights(turn, row, shape, self.reclaim)
        if rights.out_of_reach:
            return None
        found = []
        for victim in running_rivals(turn, shape, rights.anywhere):
            if not turn.state.jobs[victim, J_PREEMPTIBLE]:
                continue
            why = rights.over(victim, self.priority)
            if why is None:
                continue
            age_at = self._of_age_at(turn, victim)
            if age_at > turn.now:
                turn.retry_at = age_at if turn.retry_at < 0 else min(turn.retry_at, age_at)
                continue
            found.append(candidate(turn, victim, rights.rank(victim)))
        if not found:
            return None
        mark = turn.placer.trial.checkpoint()
        cap = int(self.most * shape.gpu_milli)
        admits = rights.admits if rights.short else None
        chosen = choose(turn.placer, shape, row, found, cap, admits)
        if chosen is None:
            return None
        victims, allocation = chosen
        if not keeps_promises(turn, row, [who.row for who in victims], allocation):
            turn.placer.trial.rollback(mark)
            return None
        for who in victims:
            stop(turn, who.row, row, rights.over(who.row, self.priority) or "")
        return allocation

    def _of_age_at(self, turn: Turn, row: int) -> int:
        """When a running job has run for as long as it is guaranteed to."""
        holdings, jobs = turn.state.holdings, turn.state.jobs
        node = holdings.node_of[int(jobs[row, J_QUEUE])]
        own = holdings.tree.queues[node].min_run if holdings.tree is not None and node >= 0 else 0
        return int(jobs[row, J_STARTED]) + max(self.min_run_s * SECOND, own)


def running_rivals(turn: Turn, shape: Shape, anywhere: bool = False) -> list[int]:
    """Running jobs, not stopped by this plan, that may lie on the pools of `shape`, or anywhere."""
    state = turn.state
    groups = [group for group in state.rivals.values() if anywhere or group.pools & shape.pool_bits]
    return sorted(row for group in groups for row in group.running if row not in turn.stopped)


def candidate(turn: Turn, row: int, rank: tuple[int, ...]) -> Candidate:
    """A running job as a possible victim, priced by the GPU time that its last checkpoint does not save.

    Whoever stops a core stops its bursts, so their price is its own too; they give back more than is counted on.
    """
    state = turn.state
    price = sum(lost(turn, unit) for unit in (row, *_running_bursts(turn, row)))
    return Candidate(row, state.running[row], int(state.jobs[row, J_MILLI]), price, rank)


def lost(turn: Turn, row: int) -> int:
    """Milli-GPU-seconds of work that stopping a running job now throws away."""
    milli, started, checkpoint = turn.state.jobs[row, [J_MILLI, J_STARTED, J_CHECKPOINT]].tolist()
    ran = turn.now - started
    return int(milli * ((ran % checkpoint if checkpoint > 0 else ran) // SECOND))


def _running_bursts(turn: Turn, core: int) -> list[int]:
    state = turn.state
    return [b for b in state.bursts.get(core, ()) if b in state.running and b not in turn.stopped]


def stop(turn: Turn, victim: int, newcomer: int, why: str) -> None:
    """Write the eviction of a victim, already given back on the trial, and of its bursts."""
    by = turn.state.ids[newcomer]
    bursts = _running_bursts(turn, victim)
    if victim not in turn.stopped:
        turn.preempt(victim, by=by, why=why)
        turn.victims.append(victim)
    for burst in bursts:
        if burst not in turn.stopped:
            turn.evict(burst, by, "core")


class Rights:
    """What one newcomer may do to whom.

    A job's class is 1 while its queue is within its entitlement and 0 beyond it; for the newcomer, counted with what
    it asks for. It may stop a victim of class 0 if its own is 1 (reclaim), and one of lower priority if its class is
    not below the victim's.
    """

    def __init__(self, turn: Turn, row: int, shape: Shape, reclaim: str) -> None:
        self.turn = turn
        self.row = row
        self.state = turn.state
        self.jobs = turn.state.jobs
        self.reclaim = reclaim
        self.amounts: Amounts = ()
        self.tree = turn.state.holdings.tree
        self.queue = int(self.jobs[row, J_QUEUE])
        self.node = turn.state.holdings.node_of[self.queue] if self.tree is not None else -1
        self.core = int(self.jobs[row, J_CORE])
        self.short = False
        self.out_of_reach = False
        self._scope = -1
        self._fair: dict[int, list[int]] = {}
        if self.tree is not None and self.node >= 0:
            self.amounts = turn.state.holdings.amounts(shape)
            short = turn.admission.shortage(row, shape)
            self.short = short is not None
            self.out_of_reach = turn.admission.never(row, shape) is not None
            self._scope = self._highest_scope()

    @property
    def anywhere(self) -> bool:
        """Whether a job on other nodes may be in the way: of the quota, if not of the place."""
        return self.short

    def _highest_scope(self) -> int:
        """The highest node of the path below which nobody on the path would have to borrow for the newcomer."""
        books = self.turn.admission.books
        if self.reclaim == "fair-share":
            path = books.paths[self.node]
            for i, node in enumerate(path):
                if any(
                    books.usage(node, key) + amount > self._entitled(node, key)
                    for key, amount in enumerate(self.amounts)
                    if amount > 0
                ):
                    return path[i]
            return path[-1]
        return books.reclaim_scope(self.node, self.amounts)

    def _entitled(self, node: int, key: int) -> int:
        """The fair share of a node, by what runs and waits now."""
        if key not in self._fair:
            state, holdings = self.state, self.state.holdings
            books = self.turn.admission.books
            wants = [0] * len(books.queues)
            for row in state.live:
                home = holdings.node_of[int(self.jobs[row, J_QUEUE])]
                if home >= 0:
                    wants[home] += holdings.amounts(state.shape_of(row))[key]
            self._fair[key] = books.fair_shares(key, wants)
        return self._fair[key][node]

    def over(self, victim: int, by_priority: bool) -> str | None:
        """By which right the newcomer may stop `victim`: `reclaim`, `priority` or None."""
        same_job = self.core >= 0 and self.core in (victim, int(self.jobs[victim, J_CORE]))
        if same_job:
            return None
        lent = self._lent(victim)
        if lent and self.reclaim != "off":
            return "reclaim"
        if by_priority and self.jobs[self.row, J_PRIORITY] > self.jobs[victim, J_PRIORITY]:
            if self.tree is None or self.node < 0 or int(self.jobs[victim, J_QUEUE]) == self.queue or lent:
                return "priority"
            if self._entitled_here(victim) or not self._victim_entitled(victim):
                return "priority"
        return None

    def _nodes(self, victim: int) -> tuple[tuple[int, ...], int, int]:
        """The victim's path, the place of the lowest common node in it, and in the newcomer's (-1 for none)."""
        assert self.tree is not None
        home = self.state.holdings.node_of[int(self.jobs[victim, J_QUEUE])]
        path = self.tree.paths[home] if home >= 0 else ()
        own = self.tree.paths[self.node]
        for i, node in enumerate(path):
            if node in own:
                return path, i, own.index(node)
        return path, -1, -1

    def _beyond(self, node: int) -> bool:
        """Whether a queue uses more than it is entitled to of what the newcomer asks for."""
        books = self.turn.admission.books
        wanted = [key for key, amount in enumerate(self.amounts) if amount > 0]
        if self.reclaim == "fair-share":
            return any(books.usage(node, key) > self._entitled(node, key) for key in wanted)
        return any(books.borrowed(node, key) for key in wanted)

    def _lent(self, victim: int) -> bool:
        """Whether the victim's queue uses what the newcomer's is entitled to."""
        if self.tree is None or self.node < 0 or int(self.jobs[victim, J_QUEUE]) == self.queue:
            return False
        path, place, own = self._nodes(victim)
        if place <= 0 or own == 0:
            return False
        scope_reaches = self.tree.paths[self.node].index(self._scope) >= own
        return scope_reaches and all(self._beyond(node) for node in path[:place])

    def _entitled_here(self, victim: int) -> bool:
        """Whether the newcomer's side stays within its entitlement, compared where the two paths meet."""
        _, _, own = self._nodes(victim)
        assert self.tree is not None
        return own < 0 or self.tree.paths[self.node].index(self._scope) >= own

    def _victim_entitled(self, victim: int) -> bool:
        path, place, _ = self._nodes(victim)
        return place <= 0 or not all(self._beyond(node) for node in path[:place])

    def rank(self, victim: int) -> tuple[int, ...]:
        """Who goes first: bursts, what is lent, low priority."""
        is_core = int(self.jobs[victim, J_CORE]) < 0
        return (int(is_core), int(not self._lent(victim)), int(self.jobs[victim, J_PRIORITY]))

    def admits(self, victims: Collection[Candidate]) -> bool:
        """Whether the newcomer's quota lets it in once these have left."""
        books, holdings = self.turn.admission.books, self.state.holdings
        charged = [holdings.charged[who.row] for who in victims]
        known = [(holdings.node_of[queue], user, amounts) for queue, user, _, amounts in charged]
        for node, user, amounts in known:
            if node >= 0:
                books.refund(node, user, amounts)
        fits = books.shortage(self.node, int(self.jobs[self.row, J_USER]), self.amounts) is None
        for node, user, amounts in known:
            if node >= 0:
                books.charge(node, user, amounts)
        return fits
