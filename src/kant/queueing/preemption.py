"""Preemption: room is made for a waiting job where it has the right to it (`queueing/rights.py`).

Sources: Kueue (reclaimWithinCohort, with a hierarchical advantage), KAI-Scheduler (reclaim to fair share),
Kant (arXiv 2510.01256).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_CORE, J_MILLI, J_PRIORITY, J_QUEUE
from kant.cluster.elastic import above_floor, without
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.units import SECOND
from kant.queueing.promises import keeps_promises
from kant.queueing.resizing import shrink
from kant.queueing.rights import Rights
from kant.queueing.shrinking import choose_gently, lost, spare_candidate
from kant.queueing.standing import BEYOND, Reclaim, Standing
from kant.queueing.turn import Turn
from kant.queueing.victims import EXACT, Candidate


class Allowed(NamedTuple):
    """Whom a job may stop (or shrink) with one claim."""

    rows: list[int]
    found: list[int]  # those of them who are of age
    lent: set[int]  # from whom a lender takes back
    age: int  # when the next of them comes of age; -1 where all are


NOBODY = Allowed([], [], set(), -1)


class Preemption(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may be stopped for whom.

    `priority`: for a job of higher priority. `reclaim`: for a job whose queue stays within its `nominal` quota, or
    within its `fair-share` of the whole, a job of a queue that is beyond its own. Never a job that is not
    preemptible, nor one that has run for less than `min_run_s` (or its queue's own minimum) since it last started.
    The victims hold at most `most` times the GPUs of the newcomer.
    """

    priority: bool = True
    reclaim: Reclaim = "nominal"
    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 300
    most: Annotated[float, Meta(ge=0, le=10**6)] = 4.0

    def make_room(self, turn: Turn, row: int, shape: Shape) -> Allocation | None:
        """Stop as few as it takes, at the least price, if that is proven to seat `row` as `shape`; else None.

        On success the plan has the victims stopped, and the place is taken on the trial. Otherwise nothing is
        changed, but `turn.retry_at` may say when a running job comes of age without whom it would fit, and
        `turn.lasts` is False where there may be victims that the search has not found.
        """
        if not shape.ask.preempts:
            return None
        standing = self.standing(turn)
        turn.lasts &= int(turn.state.jobs[row, J_PRIORITY]) <= turn.lowest  # it may stop those once they run
        above = standing.spare() if turn.state.elastic else None
        if self._is_in_vain(standing, row, shape) and (above is None or self._is_in_vain(above, row, shape)):
            return None
        rights = Rights(standing, row, shape, self.reclaim != "off", self.priority)
        to_shrink = Rights(above, row, shape, self.reclaim != "off", self.priority) if above is not None else None
        surely = rights.node < 0 and not shape.fickle  # more room never makes it fit less
        if rights.node >= 0 and not turn.admission.books.could_ever(rights.node, rights.amounts):
            return None
        claims = rights.claims()
        if to_shrink is not None:
            claims = sorted(dict.fromkeys([*claims, *to_shrink.claims()]), key=lambda claim: claim == BEYOND)
        for claim in claims:
            own = _allowed(rights, claim)
            wide = _allowed(to_shrink, claim) if to_shrink is not None else NOBODY
            young = [age for age in (own.age, wide.age) if age >= 0]
            if young:
                if surely and not fits_without(standing, own.rows, row, shape, wide.rows):
                    continue
                turn.retry_at = _sooner(turn.retry_at, min(young))
            if not own.found and not wide.found:
                continue
            whole = [candidate(turn, r, r in own.lent) for r in own.found]
            spare = [spare_candidate(turn, r, shape, r in wide.lent) for r in wide.found]
            admits = partial(rights.admits, claim=claim) if rights.node >= 0 else None
            mark = turn.placer.trial.checkpoint()
            chosen = choose_gently(turn, row, shape, whole, spare, int(self.most * shape.gpu_milli), admits)
            if chosen is None:
                # The search may choose other victims as their prices grow; where it was exact, or in vain, it may not.
                turn.lasts &= len(whole) + len(spare) <= EXACT or (
                    surely and not fits_without(standing, own.found, row, shape, wide.found)
                )
                continue
            victims, allocation = chosen
            if not keeps_promises(turn, row, victims, allocation):
                turn.placer.trial.rollback(mark)
                continue
            make_way(turn, victims, row, "priority", own.lent | wide.lent)
            return allocation
        return None

    def standing(self, turn: Turn) -> Standing:
        """Where the running jobs stand, as the plan is now. Made once a cycle."""
        if turn.standing is None:
            turn.standing = Standing(turn, self.reclaim, self.min_run_s * SECOND)
        turn.standing.follow()
        return turn.standing

    def _is_in_vain(self, standing: Standing, row: int, shape: Shape) -> bool:
        """Whether it is plain at once that the job may stop nobody: nobody who runs is of lower priority, and either
        nobody is beyond his queue's entitlement, or the job would be beyond its own.
        """
        state = standing.state
        if self.priority and int(state.jobs[row, J_PRIORITY]) > standing.lowest:
            return False
        if self.reclaim == "off" or not standing.lends:
            return True
        node, amounts = state.holdings.node_of[int(state.jobs[row, J_QUEUE])], state.holdings.amounts(shape)
        return node < 0 or not any(amounts) or standing.reach(node, amounts) == BEYOND


def _allowed(rights: Rights, claim: int) -> Allowed:
    standing = rights.standing
    allowed = rights.victims(claim)
    young = allowed & (standing.of_age_at > standing.turn.now)
    return Allowed(
        standing.rows[allowed].tolist(),
        standing.rows[allowed & ~young].tolist(),
        set(standing.rows[rights.reclaims(claim)].tolist()),
        int(standing.of_age_at[young].min()) if young.any() else -1,
    )


def _sooner(time: int, other: int) -> int:
    return other if time < 0 else min(time, other)


def fits_without(
    standing: Standing, stopped: Sequence[int], row: int, shape: Shape, shrunk: Sequence[int] = ()
) -> bool:
    """Whether the job would fit if these stopped, and the gangs `shrunk` had only their floors."""
    placer, state = standing.turn.placer, standing.state
    mark = placer.trial.checkpoint()
    leaving = [state.running[other] for other in stopped]
    if shrunk:
        gone = set(stopped)
        leaving += [above_floor(state.shape_of(other), state.running[other]) for other in shrunk if other not in gone]
    if leaving:
        for allocation in leaving if shape.picky else [np.concatenate(leaving)]:
            placer.trial.evict(allocation)
    result = placer.place(shape, row)
    placer.trial.rollback(mark)
    return not isinstance(result, NoFit)


def candidate(turn: Turn, row: int, lent: bool = False) -> Candidate:
    """A running job as a possible victim, priced by the GPU time that its last checkpoint does not save.

    Bursts go first, since whoever stops a core stops its bursts (so their price is its own too; they give back more
    than is counted on); then what is `lent`; then low priority.
    """
    state = turn.state
    price = sum(lost(turn, unit) for unit in (row, *_running_bursts(turn, row)))
    milli, priority, core = state.jobs[row, [J_MILLI, J_PRIORITY, J_CORE]].tolist()
    return Candidate(row, state.running[row], milli, price, (int(core < 0), int(not lent), priority))


def _running_bursts(turn: Turn, core: int) -> list[int]:
    state = turn.state
    return [b for b in state.bursts.get(core, ()) if b in state.running and b not in turn.stopped]


def make_way(turn: Turn, victims: list[Candidate], newcomer: int, why: str, lent: Collection[int] = ()) -> None:
    """Write that victims, given back on the trial already, stop or shrink; for the `lent` the reason is `reclaim`."""
    by, stopped = turn.state.ids[newcomer], {who.row for who in victims if not who.spare}
    turn.review(turn.now + 1)  # who else fits where the victims leave more than the newcomer takes
    for who in [who for who in victims if who.spare]:
        if int(turn.state.jobs[who.row, J_CORE]) in stopped:  # its core stops, so it does too
            turn.preempt(who.row, by=by, why="core")
            turn.placer.trial.evict(without(turn.state.running[who.row], who.allocation))
        else:
            shrink(turn, who.row, who.allocation, by, "reclaim" if who.row in lent else why)
    for who in victims:
        if not who.spare:
            stop(turn, who.row, newcomer, "reclaim" if who.row in lent else why)


def stop(turn: Turn, victim: int, newcomer: int, why: str) -> None:
    """Write the eviction of a victim, already given back on the trial, and of its bursts."""
    by = turn.state.ids[newcomer]
    turn.preempt(victim, by=by, why=why)
    turn.victims.append(victim)
    for burst in _running_bursts(turn, victim):
        turn.evict(burst, by, "core")
