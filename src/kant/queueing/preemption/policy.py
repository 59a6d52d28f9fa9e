"""Preemption: running jobs are evicted for a waiting job if the rules allow it (`preemption/rules.py`).

Sources: Kueue (reclaimWithinCohort, with a hierarchical advantage), KAI-Scheduler (reclaim to fair share),
Kant (arXiv 2510.01256).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_BASE, J_MILLI, J_PRIORITY, J_QUEUE, Table
from kant.cluster.elastic import above_floor, without
from kant.cluster.quota_columns import NO_QUOTAS
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Move
from kant.model.placement import Allocation
from kant.model.units import FOREVER, SECOND
from kant.queueing.claims import may_evict, may_evict_later
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import BORROWING, PASSED, R_ROW, RECLAIMED
from kant.queueing.ports import NO_CANDIDATES, NotNow
from kant.queueing.preemption.candidate import Candidate, Pool
from kant.queueing.preemption.entitlement import Entitlements, Reclaim
from kant.queueing.preemption.levels import make_best_level
from kant.queueing.preemption.reservations import keeps_reservations
from kant.queueing.preemption.rules import PreemptionRules
from kant.queueing.preemption.search import EXACT, TRIALS
from kant.queueing.preemption.shrinking import choose_shrinking_first, lost_work, lost_works, surplus_candidate
from kant.queueing.resizing import shrink


class _OnTrial:
    """The functions of `levels.py` on the trial, for running jobs and for elastic gangs above their floors.

    `cap`: the milli-GPUs that victims may hold. `found` has the victims of each level, the placement, and the trial's
    moves.
    """

    def __init__(self, cycle: CyclePlan, row: int, shape: Shape, all_rules: list[PreemptionRules], cap: int) -> None:
        self.cycle, self.row, self.shape, self.all_rules, self.cap = cycle, row, shape, all_rules, cap
        self.table: Table = np.concatenate([rules.running.table for rules in all_rules])
        self.whole = len(all_rules[0].running.table)
        self.found: dict[int, tuple[list[Candidate], Allocation, list[Move]]] = {}

    def levels(self) -> list[int]:
        """Return the levels of all rules, in the order in which they are tried."""
        levels = dict.fromkeys([level for rules in self.all_rules for level in rules.levels()])
        return sorted(levels, key=lambda level: level == BORROWING)

    def mark(self, level: int, marks: Table) -> None:
        """Write for each job or gang of `table` whether the waiting job may stop or shrink it at a level."""
        marks[:] = np.concatenate([rules.marks(level) for rules in self.all_rules])

    def fits(self, places: Table) -> bool:
        """Return whether the job fits once the jobs at these indices of `table` have left."""
        stop, shrink = (self.table[which, R_ROW] for which in self._apart(places))
        return fits_without(self.all_rules[0].entitlements, stop, self.row, self.shape, shrink.tolist())

    def search(self, places: Table, marks: Table, level: int, later: bool) -> tuple[Table, Table, bool, bool]:
        """Search for victims at these indices of `table`. Returns the level, the weight of the victims, whether there
        are any, and whether the search was exact.

        The weight has first the number of jobs that stop; then the worst rank, the cost, the milli-GPUs and the rows.
        """
        cycle, row, trial, (whole, wide) = self.cycle, self.row, self.cycle.placer.trial, self._apart(places)
        pool = candidates_of(cycle, self.table[whole, R_ROW], marks[whole])
        surplus = [surplus_candidate(cycle, self.table.item(i, R_ROW), self.shape, marks.item(i)) for i in wide]
        mark, admits, none = trial.checkpoint(), self.all_rules[0].quota(level), places[:0]
        chosen, exact = choose_shrinking_first(cycle, row, self.shape, pool, surplus, self.cap, admits)
        if chosen is None:
            return none, none, False, exact
        victims, allocation = chosen
        kept = not later and keeps_reservations(cycle, row, victims, allocation)
        done = trial.cut(mark)
        if not kept:
            return none, none, later, True
        self.found[level] = victims, allocation, done
        stopped, rank = sum(not who.surplus for who in victims), max((who.rank for who in victims), default=(-1,) * 3)
        cost, milli = sum(who.cost for who in victims), sum(who.milli for who in victims)
        weight = np.array([stopped, *rank, cost, milli, *sorted(who.row for who in victims)], dtype=np.int64)
        return np.array([level]), weight, True, exact

    def _apart(self, places: Table) -> tuple[Table, Table]:
        return places[places < self.whole], places[places >= self.whole]


best_level = make_best_level(_OnTrial.mark, _OnTrial.fits, _OnTrial.search, lambda loop: loop)


class Preemption(Struct, frozen=True, forbid_unknown_fields=True):
    """Which running jobs may be evicted for which waiting jobs.

    With `priority` a job may evict jobs of lower priority. With `reclaim` a job whose queue stays in its `nominal`
    quota, or in its `fair-share` of the whole, may evict jobs of queues that borrow. A job that is not preemptible is
    never evicted, nor is one that has run for less than `min_run_s` (or its queue's own minimum) since it last started.
    The victims hold at most `most` times the GPUs of the newcomer. Neither bound applies to jobs of lower priority that
    passed the newcomer, if the discipline takes back their devices. With `move_victims`, victims that fit elsewhere are
    moved in the same plan, also those of the discipline.

    The search for victims is bounded. Among up to `exact` candidates every set that could be better is tried. Among
    more candidates, the best set found in about `trials` trial placements is taken.
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

        Each level has a best set of victims; of these sets, the one that stops the fewest jobs is taken (`levels.py`).

        On success the plan evicts the victims, and the returned placement is taken on the trial. Otherwise nothing
        changes, and the answer says when another try may help.
        """
        if not shape.ask.preempts:
            return NO_CANDIDATES
        # Jobs of lower priority that this plan starts are candidates once they run.
        definitive = int(cycle.state.jobs[row, J_PRIORITY]) <= cycle.lowest
        if not self._may_evict(cycle, row, shape):
            return NO_CANDIDATES if definitive else NotNow(-1, False, True)
        above = self.entitlements(cycle).surplus() if cycle.state.elastic else None
        rules = self.rules(cycle, row, shape)
        cap = int(self.most * shape.gpu_milli)
        known = rules.finds(cap, self.exact) if above is None and not cycle.state.burst_replicas else None
        if known is not None:
            return known._replace(definitive=known.definitive and definitive)
        if not rules.could_ever:
            return NotNow(definitive=definitive)
        all_rules = [rules] if above is None else [rules, self.rules(cycle, row, shape, above)]
        asked = _OnTrial(cycle, row, shape, all_rules, cap)
        limited, steady = rules.node >= 0, not shape.order_dependent
        chosen, marks, retry_at, proven = best_level(
            asked, cycle.now, asked.levels(), asked.whole, cap, self.exact, limited, steady
        )
        if not len(chosen):
            return NotNow(retry_at, proven and definitive)
        victims, allocation, done = asked.found[chosen.item(0)]
        cycle.placer.trial.redo(done)
        evict_victims(cycle, victims, row, "priority", set(asked.table[marks & RECLAIMED > 0, R_ROW].tolist()))
        return allocation

    def await_starts(self, cycle: CyclePlan) -> None:
        """Ask for a cycle after the minimum run time if a waiting job may then evict a job that this plan starts."""
        from kant.queueing.blocked import blocked  # loaded with the first plan that starts a job

        shapes, tree = cycle.state.shapes.shapes, cycle.state.quota_usage.tree
        asks = cycle.by_share or (self.reclaim != "off" and tree is not None and len(tree.keys) > 0)
        at = cycle.now + max(1, self.min_run_s * SECOND)
        for row, index, *_ in blocked(cycle) if asks and not 0 <= cycle.plan.review_at <= at else ():
            shape = shapes[index]
            options = cycle.admission.options(row, shape) if cycle.limited else [shape]
            if shape.ask.preempts and any(self._may_evict(cycle, row, option, later=True) for option in options):
                cycle.wake_at(at)
                break

    def rules(self, cycle: CyclePlan, row: int, shape: Shape, surplus: Entitlements | None = None) -> PreemptionRules:
        """Return which jobs a waiting job may stop to start as `shape`; with `surplus`, which gangs it may shrink."""
        return PreemptionRules(surplus or self.entitlements(cycle), row, shape, self.reclaim != "off", self.priority)

    def entitlements(self, cycle: CyclePlan) -> Entitlements:
        """Return the entitlements of the running jobs as the plan leaves them. The table is made once a cycle."""
        if cycle.entitlements is None:
            cycle.entitlements = Entitlements(cycle, self.reclaim, self.min_run_s * SECOND)
        else:
            cycle.entitlements.follow()
        return cycle.entitlements

    def _may_evict(self, cycle: CyclePlan, row: int, shape: Shape, later: bool = False) -> bool:
        """Return whether, judged by totals, a job may evict a running job or (`later`) a job that this plan starts."""
        state, usage, tree = cycle.state, cycle.state.quota_usage, cycle.state.quota_usage.tree
        priority, queue = state.jobs[row, [J_PRIORITY, J_QUEUE]].tolist()
        lowest = FOREVER
        if self.priority or cycle.preempts_passing:
            if cycle.lowest_running is None:
                cycle.lowest_running = state.lowest_preemptible()
            lowest = cycle.lowest_running
        limits, used, first, amounts, reclaims = NO_QUOTAS, NO_QUOTAS, -1, np.zeros(0, dtype=np.int64), False
        if tree is not None and tree.keys and self.reclaim != "off" and usage.node_of[queue] >= 0:
            limits, used, reclaims = tree.limits, cycle.admission.quota_tree.used, True
            amounts = np.array(usage.amounts(shape), dtype=np.int64)
            first = usage.node_of[queue] * len(amounts)
            if self.reclaim == "fair-share" and amounts.any():  # fair shares depend on all live jobs
                return True
        if later:
            return may_evict_later(priority, lowest, cycle.lowest, reclaims, limits, used, first, amounts)
        return priority > lowest or (
            reclaims
            and may_evict(priority, lowest, True, limits, used, first, amounts, True)
            and state.eviction_bounds()[1]
        )  # fmt: skip


def fits_without(
    entitlements: Entitlements, stopped: Sequence[int] | Table, row: int, shape: Shape, shrunk: Sequence[int] = ()
) -> bool:
    """Return whether the job fits if the jobs `stopped` stop and the gangs `shrunk` have only their floors."""
    placer, state, rows = entitlements.cycle.placer, entitlements.state, np.array(stopped, dtype=np.int64)
    fits = None if shrunk else placer.fits_without(shape, rows)
    if fits is not None:
        return fits
    mark, gone = placer.trial.checkpoint(), set(rows.tolist())
    leaving = [state.running[other] for other in rows.tolist()]
    leaving += [above_floor(state.shape_of(other), state.running[other]) for other in shrunk if other not in gone]
    if leaving:
        for allocation in leaving if shape.has_affinity else [np.concatenate(leaving)]:
            placer.trial.evict(allocation)
    missing = placer.missing(shape, row)
    placer.trial.rollback(mark)
    return missing == 0


def candidates_of(cycle: CyclePlan, rows: Sequence[int] | Table, marks: Table | int = 0) -> Pool:
    """Return running jobs as possible victims, with their marks. The cost of a victim is its GPU time since its last
    checkpoint.

    Replicas are evicted first, since a base job stops with its replicas (its cost includes theirs, but not what they
    give back); then jobs from which quota is reclaimed; then jobs of low priority.
    """
    state, own = cycle.state, np.array(rows, dtype=np.int64)
    cost, jobs, bits = lost_works(cycle, own), state.jobs.take(own, axis=0), np.full(len(own), marks, dtype=np.int64)
    if state.burst_replicas and len(own):
        cost += [sum([lost_work(cycle, one) for one in _running_replicas(cycle, row)]) for row in own.tolist()]
    ranks = np.column_stack([jobs[:, J_BASE] < 0, bits & RECLAIMED == 0, jobs[:, J_PRIORITY]]).astype(np.int64)
    return Pool(own, [state.running[row] for row in own.tolist()], jobs[:, J_MILLI], cost, ranks, bits & PASSED != 0)


def _running_replicas(cycle: CyclePlan, base: int) -> list[int]:
    state = cycle.state
    return [b for b in state.burst_replicas.get(base, ()) if b in state.running and b not in cycle.stopped]


def evict_victims(
    cycle: CyclePlan, victims: list[Candidate], newcomer: int, why: str, reclaimed: Collection[int] = ()
) -> None:
    """Plan the stops and shrinks of victims, already freed on the trial; for `reclaimed` the reason is `reclaim`."""
    by, stopped = cycle.state.ids[newcomer], {who.row for who in victims if not who.surplus}
    cycle.wake_at(cycle.now + 1)  # others may fit where the victims free more than the newcomer takes
    for who in [who for who in victims if who.surplus]:
        if int(cycle.state.jobs[who.row, J_BASE]) in stopped:  # the gang stops with its base job
            cycle.preempt(who.row, by=by, why="core")
            cycle.placer.trial.evict(without(cycle.state.running[who.row], who.allocation))
        else:
            shrink(cycle, who.row, who.allocation, by, "reclaim" if who.row in reclaimed else why)
    for who in victims:
        if not who.surplus:
            stop(cycle, who.row, newcomer, "reclaim" if who.row in reclaimed else why)


def stop(cycle: CyclePlan, victim: int, newcomer: int, why: str) -> None:
    """Plan the eviction of a victim, whose devices are already free on the trial, and of its burst replicas."""
    by = cycle.state.ids[newcomer]
    cycle.preempt(victim, by=by, why=why)
    cycle.victims.append(victim)
    for replica in _running_replicas(cycle, victim):
        cycle.evict(replica, by, "core")
