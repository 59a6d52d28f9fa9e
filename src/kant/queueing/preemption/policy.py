"""Preemption: running jobs are evicted for a waiting job if the rules allow it (`preemption/rules.py`).

Sources: Kueue (reclaimWithinCohort, with a hierarchical advantage), KAI-Scheduler (reclaim to fair share),
Kant (arXiv 2510.01256).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_BASE, J_MILLI, J_PRIORITY, J_QUEUE
from kant.cluster.elastic import above_floor, without
from kant.cluster.quota_columns import NO_QUOTAS
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Move
from kant.model.placement import Allocation
from kant.model.units import FOREVER, SECOND
from kant.queueing.claims import may_evict, may_evict_later
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING
from kant.queueing.ports import NO_CANDIDATES, NotNow
from kant.queueing.preemption.candidate import Admits, Candidate, Pool
from kant.queueing.preemption.entitlement import Entitlements, Reclaim
from kant.queueing.preemption.reservations import keeps_reservations
from kant.queueing.preemption.rules import PreemptionRules
from kant.queueing.preemption.search import EXACT, TRIALS, Chosen
from kant.queueing.preemption.shrinking import choose_shrinking_first, lost_work, lost_works, surplus_candidate
from kant.queueing.resizing import shrink
from kant.queueing.room_given import UNBOUNDED, room_given


class Allowed(NamedTuple):
    """The jobs that a waiting job may stop or shrink at one level."""

    rows: list[int]
    found: list[int]  # those of them that have reached their minimum run time
    reclaimed: set[int]  # jobs from which the queue reclaims its entitlement
    age: int  # when the next of them reaches its minimum run time; -1 where all have
    passed: frozenset[int]  # those of `found` that passed the job

    def later(self) -> Allowed:
        """Return these jobs as if all had reached their minimum run time."""
        return self._replace(found=self.rows, age=-1)


NO_VICTIMS = Allowed([], [], set(), -1, frozenset())


class LevelResult(NamedTuple):
    """The result of one level: the victims, the placement, the jobs reclaimed from, and the moves on the trial."""

    victims: list[Candidate]
    allocation: Allocation
    reclaimed: set[int]
    done: list[Move]


Preference = tuple[int, tuple[int, ...], int, int, list[int]]


def preference(victims: Sequence[Candidate]) -> Preference:
    """Return the sort key by which the victims of the levels are compared: the smallest wins.

    The fewest jobs that stop come first, then the worst rank, the cost, the milli-GPUs and the rows.
    """
    stopped = sum([not who.surplus for who in victims])
    rank = max([who.rank for who in victims], default=())
    cost, milli = sum([who.cost for who in victims]), sum([who.milli for who in victims])
    return stopped, rank, cost, milli, sorted([who.row for who in victims])


class Preemption(Struct, frozen=True, forbid_unknown_fields=True):
    """Which running jobs may be evicted for which waiting jobs.

    With `priority` a job may evict jobs of lower priority. With `reclaim` a job whose queue stays in its `nominal`
    quota, or in its `fair-share` of the whole, may evict jobs of queues that borrow. A job that is not preemptible is
    never evicted, nor is one that has run for less than `min_run_s` (or its queue's own minimum) since it last started.
    The victims hold at most `most` times the GPUs of the newcomer. Neither bound counts for jobs of lower priority that
    passed the newcomer, if the discipline takes these back. With `move_victims`, victims that fit elsewhere move there
    in the same plan, also those of the discipline.

    The search for victims is bounded. Among up to `exact` candidates every set that could be better is tried. Among
    more, the best set found in about `trials` trial placements is taken.
    """

    priority: bool = True
    reclaim: Reclaim = "nominal"
    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 300
    most: Annotated[float, Meta(ge=0, le=10**6)] = 4.0
    move_victims: bool = True
    exact: Annotated[int, Meta(ge=0, le=16)] = EXACT
    trials: Annotated[int, Meta(ge=1, le=10**6)] = TRIALS

    def free_capacity(self, cycle: CyclePlan, row: int, shape: Shape) -> Allocation | NotNow:
        """Evict as few jobs as necessary, at the least cost, if the job then fits as `shape`.

        Each level has a best set of victims; the set with the fewest jobs is taken (`preference`).

        On success the plan evicts the victims, and the returned placement is taken on the trial. Otherwise nothing
        changes, and the answer says when another try may help.
        """
        if not shape.ask.preempts:
            return NO_CANDIDATES
        # Jobs of lower priority that this plan starts are candidates once they run.
        retry_at, definitive = -1, int(cycle.state.jobs[row, J_PRIORITY]) <= cycle.lowest
        if not self._may_evict(cycle, row, shape):
            return NO_CANDIDATES if definitive else NotNow(-1, False, True)
        entitlements = self.entitlements(cycle)
        above = entitlements.surplus() if cycle.state.elastic else None
        rules = PreemptionRules(entitlements, row, shape, self.reclaim != "off", self.priority)
        cap = int(self.most * shape.gpu_milli)
        known = rules.finds(cap, self.exact) if above is None and not cycle.state.burst_replicas else None
        if known is not None:
            return known._replace(definitive=known.definitive and definitive)
        to_shrink = (
            PreemptionRules(above, row, shape, self.reclaim != "off", self.priority) if above is not None else None
        )
        surely = rules.node < 0 and not shape.order_dependent  # more room never makes it fit less
        if rules.node >= 0 and not cycle.admission.quota_tree.could_ever(rules.node, rules.amounts):
            return NotNow(definitive=definitive)
        levels = rules.levels()
        if to_shrink is not None:
            levels = sorted(dict.fromkeys([*levels, *to_shrink.levels()]), key=lambda level: level == BORROWING)
        best: tuple[Preference, LevelResult] | None = None
        for level in levels:
            own = allowed_victims(rules, level)
            wide = allowed_victims(to_shrink, level) if to_shrink is not None else NO_VICTIMS
            protected = [age for age in (own.age, wide.age) if age >= 0]
            admits = rules.quota(level)
            if protected:
                if surely and not fits_without(entitlements, own.rows, row, shape, wide.rows):
                    continue
                forbidden, exact = self.forbids(cycle, rules, row, shape, own, wide, admits)
                if forbidden and exact:
                    continue
                definitive &= exact
                if not forbidden:
                    retry_at = _sooner(retry_at, min(protected))
            if not own.found and not wide.found:
                continue
            mark = cycle.placer.trial.checkpoint()
            chosen, exact = choose_victims(cycle, row, shape, own, wide, cap, admits)
            if chosen is None:
                # Costs grow with time, so a later search may find a set, unless this one was exact or all are too few.
                definitive &= exact or (surely and not fits_without(entitlements, own.found, row, shape, wide.found))
                continue
            victims, allocation = chosen
            kept = keeps_reservations(cycle, row, victims, allocation)
            done, better = cycle.placer.trial.cut(mark), preference(victims)
            if kept and (best is None or better < best[0]):
                best = better, LevelResult(victims, allocation, own.reclaimed | wide.reclaimed, done)
        if best is None:
            return NotNow(retry_at, definitive)
        winner = best[1]
        cycle.placer.trial.redo(winner.done)
        evict_victims(cycle, winner.victims, row, "priority", winner.reclaimed)
        return winner.allocation

    def await_starts(self, cycle: CyclePlan) -> None:
        """Ask for a cycle when a waiting job may evict one that this plan starts: once that has run for its minimum."""
        shapes, tree = cycle.state.shapes.shapes, cycle.state.quota_usage.tree
        asks = cycle.by_share or (self.reclaim != "off" and tree is not None and len(tree.keys) > 0)
        at = cycle.now + max(1, self.min_run_s * SECOND)
        for row, index, *_ in cycle.pending.heads() if asks and not 0 <= cycle.plan.review_at <= at else ():
            shape = shapes[index]
            options = cycle.admission.options(row, shape) if cycle.limited else [shape]
            if shape.ask.preempts and any(self._may_evict(cycle, row, option, later=True) for option in options):
                cycle.wake_at(at)
                break

    def forbids(
        self,
        cycle: CyclePlan,
        rules: PreemptionRules,
        row: int,
        shape: Shape,
        own: Allowed,
        wide: Allowed,
        admits: Admits | None,
    ) -> tuple[bool, bool]:
        """Return whether no set of these jobs frees enough within `most`, at any run time; and whether that is proven.

        The search is exact among few jobs. Among many it may miss a set.
        """
        cap, passed = int(self.most * shape.gpu_milli), own.passed
        held = cycle.state.jobs[own.rows, J_MILLI].tolist()
        sizes = [(victim, 0 if victim in passed else milli) for victim, milli in zip(own.rows, held, strict=True)]
        if wide.rows or sum([milli for _, milli in sizes]) <= cap:
            return False, True
        light = [victim for victim, milli in sizes if milli <= cap]
        plain = not shape.order_dependent  # more room never makes it fit less
        if len(light) < len(sizes) and plain and not fits_without(rules.entitlements, light, row, shape):
            return True, True
        if len(light) > self.exact and (rules.node >= 0 or not plain):
            return False, True
        mark = cycle.placer.trial.checkpoint()
        found, exact = choose_victims(cycle, row, shape, own.later(), wide, cap, admits)
        cycle.placer.trial.rollback(mark)
        return found is None, exact or found is not None

    def entitlements(self, cycle: CyclePlan) -> Entitlements:
        """Return the entitlements of the running jobs as the plan leaves them. The table is made once a cycle."""
        if cycle.entitlements is None:
            cycle.entitlements = Entitlements(cycle, self.reclaim, self.min_run_s * SECOND)
        cycle.entitlements.follow()
        return cycle.entitlements

    def _may_evict(self, cycle: CyclePlan, row: int, shape: Shape, later: bool = False) -> bool:
        """Return whether counts allow that the job evicts a running one; `later`: one that this plan starts."""
        state, usage, tree = cycle.state, cycle.state.quota_usage, cycle.state.quota_usage.tree
        priority, queue = state.jobs[row, [J_PRIORITY, J_QUEUE]].tolist()
        lowest = state.lowest_preemptible() if self.priority or cycle.takes_back else FOREVER
        limits, used, first, amounts, reclaims = NO_QUOTAS, NO_QUOTAS, -1, np.zeros(0, dtype=np.int64), False
        if tree is not None and tree.keys and self.reclaim != "off" and usage.node_of[queue] >= 0:
            limits, used, reclaims = tree.limits, cycle.admission.quota_tree.used, True
            amounts = np.array(usage.amounts(shape), dtype=np.int64)
            first = usage.node_of[queue] * len(amounts)
            if self.reclaim == "fair-share" and amounts.any():  # fair shares depend on all live jobs
                return True
        if later:
            return may_evict_later(priority, lowest, cycle.lowest, reclaims, limits, used, first, amounts)
        return may_evict(priority, lowest, reclaims, limits, used, first, amounts, True) and (
            priority > lowest or state.eviction_bounds()[1]
        )


def allowed_victims(rules: PreemptionRules, level: int) -> Allowed:
    """Return the jobs that a waiting job may stop at one level, as the plan leaves them."""
    entitlements = rules.entitlements
    allowed, reclaims = rules.victims(level)
    of_all = rules.protected_until()
    rows, until, now = entitlements.rows[allowed], of_all[allowed], entitlements.cycle.now
    protected = until > now
    passed = frozenset[int]() if rules.passed is None else frozenset(entitlements.rows[allowed & rules.passed].tolist())
    return Allowed(
        rows.tolist(),
        rows[~protected].tolist(),
        set(entitlements.rows[reclaims].tolist()),
        int(until[protected].min()) if protected.any() else -1,
        passed,
    )


def choose_victims(
    cycle: CyclePlan,
    row: int,
    shape: Shape,
    own: Allowed,
    wide: Allowed,
    cap_milli: int,
    admits: Admits | None,
) -> tuple[Chosen | None, bool]:
    """Return the best victims found among the jobs `own` and the surplus of the gangs `wide`, with the placement.

    Also returns whether the search was exact, so that None proves that there is no set. On success the placement is
    taken on the trial; otherwise nothing changes.
    """
    surplus = [surplus_candidate(cycle, one, shape, one in wide.reclaimed, one in wide.passed) for one in wide.found]
    whole = candidates_of(cycle, own.found, own.reclaimed, own.passed)
    return choose_shrinking_first(cycle, row, shape, whole, surplus, cap_milli, admits)


def _sooner(time: int, other: int) -> int:
    return other if time < 0 else min(time, other)


def fits_without(
    entitlements: Entitlements, stopped: Sequence[int], row: int, shape: Shape, shrunk: Sequence[int] = ()
) -> bool:
    """Return whether the job fits if the jobs `stopped` stop and the gangs `shrunk` have only their floors."""
    return missing_without(entitlements, stopped, row, shape, shrunk) == 0


def missing_without(
    entitlements: Entitlements, stopped: Sequence[int], row: int, shape: Shape, shrunk: Sequence[int] = ()
) -> int:
    """Return a lower bound on the pods of a group that do not fit if `stopped` stop and `shrunk` have only their
    floors; 0 if the gang fits.
    """
    placer, state = entitlements.cycle.placer, entitlements.state
    if not shrunk and (room := room_given(state, shape, stopped)) < UNBOUNDED:
        missing = placer.missing(shape, row) - room
        if missing > 0:
            return missing
    mark = placer.trial.checkpoint()
    leaving = [state.running[other] for other in stopped]
    if shrunk:
        gone = set(stopped)
        leaving += [above_floor(state.shape_of(other), state.running[other]) for other in shrunk if other not in gone]
    if leaving:
        for allocation in leaving if shape.has_affinity else [np.concatenate(leaving)]:
            placer.trial.evict(allocation)
    missing = placer.missing(shape, row)
    placer.trial.rollback(mark)
    return missing


def candidates_of(
    cycle: CyclePlan, rows: Sequence[int], reclaimed: Collection[int] = (), passed: Collection[int] = ()
) -> Pool:
    """Return running jobs as possible victims. The cost of one is the GPU time since its last checkpoint.

    Replicas are evicted first, since a base job stops with its replicas (their cost is part of its own, but not what
    they give back); then `reclaimed` jobs; then low priority.
    """
    state, own = cycle.state, np.array(rows, dtype=np.int64)
    cost, jobs = lost_works(cycle, own), state.jobs.take(own, axis=0)
    if state.burst_replicas and len(rows):
        cost += [sum([lost_work(cycle, replica) for replica in _running_replicas(cycle, row)]) for row in rows]
    kept = np.array([row not in reclaimed for row in rows], dtype=np.int64)
    ranks = np.empty((len(own), 3), dtype=np.int64)
    ranks[:, 0], ranks[:, 1], ranks[:, 2] = jobs[:, J_BASE] < 0, kept, jobs[:, J_PRIORITY]
    exempt = np.array([row in passed for row in rows], dtype=np.bool_)
    return Pool(own, [state.running[row] for row in rows], jobs[:, J_MILLI], cost, ranks, exempt)


def _running_replicas(cycle: CyclePlan, base: int) -> list[int]:
    state = cycle.state
    return [b for b in state.burst_replicas.get(base, ()) if b in state.running and b not in cycle.stopped]


def evict_victims(
    cycle: CyclePlan, victims: list[Candidate], newcomer: int, why: str, reclaimed: Collection[int] = ()
) -> None:
    """Write the stops and shrinks of victims, already given back on the trial (`reclaimed`: with reason `reclaim`)."""
    by, stopped = cycle.state.ids[newcomer], {who.row for who in victims if not who.surplus}
    cycle.wake_at(cycle.now + 1)  # others may fit where the victims free more than the newcomer takes
    for who in [who for who in victims if who.surplus]:
        if int(cycle.state.jobs[who.row, J_BASE]) in stopped:  # it stops with its base job
            cycle.preempt(who.row, by=by, why="core")
            cycle.placer.trial.evict(without(cycle.state.running[who.row], who.allocation))
        else:
            shrink(cycle, who.row, who.allocation, by, "reclaim" if who.row in reclaimed else why)
    for who in victims:
        if not who.surplus:
            stop(cycle, who.row, newcomer, "reclaim" if who.row in reclaimed else why)


def stop(cycle: CyclePlan, victim: int, newcomer: int, why: str) -> None:
    """Write the eviction of a victim, already given back on the trial, and of its burst replicas."""
    by = cycle.state.ids[newcomer]
    cycle.preempt(victim, by=by, why=why)
    cycle.victims.append(victim)
    for replica in _running_replicas(cycle, victim):
        cycle.evict(replica, by, "core")
